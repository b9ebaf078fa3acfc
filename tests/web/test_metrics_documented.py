"""docs/operations.md describes every metric that is exported."""

from __future__ import annotations

from pathlib import Path

from prometheus_client import CollectorRegistry

from realtime.turn_metrics import TurnMetrics
from web.metrics import WebMetrics

DOCUMENT = Path(__file__).parents[2] / "docs" / "operations.md"


def names(registry: CollectorRegistry) -> set[str]:
    families = [family for family in registry.collect() if family.name.startswith("midstream_")]
    return {f"{family.name}_total" if family.type == "counter" else family.name for family in families}


def test_every_metric_is_documented() -> None:
    exported = names(TurnMetrics("node").registry) | names(WebMetrics().registry)
    assert len(exported) > 20
    text = DOCUMENT.read_text()
    assert [name for name in sorted(exported) if f"`{name}`" not in text] == []
