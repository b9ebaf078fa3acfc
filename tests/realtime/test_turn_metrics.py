from __future__ import annotations

from engine.messages import Stats
from realtime.turn_metrics import TurnMetrics


def stats(**changes: float) -> Stats:
    """All zero but for `changes`."""
    zeros: dict[str, float] = dict.fromkeys(Stats.__struct_fields__, 0)
    return Stats(**(zeros | changes))  # type: ignore[arg-type]


def test_cached_blocks_are_told_apart_from_free_ones() -> None:
    text = TurnMetrics("n").gauges(stats(blocks_free=10, blocks_cached=4, blocks_held=1), 0).decode()
    assert 'midstream_kv_blocks{node="n",state="free"} 6.0' in text
    assert 'midstream_kv_blocks{node="n",state="cached"} 4.0' in text
    assert 'midstream_kv_blocks{node="n",state="held"} 1.0' in text


def test_counters_of_the_engine_grow_over_its_restarts() -> None:
    metrics = TurnMetrics("n")
    metrics.gauges(stats(drafted_tokens=8, accepted_tokens=5, prefix_hit_tokens=100, preemptions=1), 0)
    metrics.gauges(stats(drafted_tokens=9, accepted_tokens=6, prefix_hit_tokens=100), 0)
    metrics.gauges(None, 0)
    text = metrics.gauges(stats(drafted_tokens=2, accepted_tokens=1), 0).decode()
    assert 'midstream_drafted_tokens_total{node="n"} 11.0' in text
    assert 'midstream_accepted_tokens_total{node="n"} 7.0' in text
    assert 'midstream_prefix_hit_tokens_total{node="n"} 100.0' in text
    assert 'midstream_preemptions_total{node="n"} 1.0' in text
