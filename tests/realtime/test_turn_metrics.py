from __future__ import annotations

from typing import Any

from engine.messages import Stats, ToolAck
from realtime.host import _numbers
from realtime.turn_metrics import TurnMetrics


def stats(**changes: Any) -> Stats:
    """All zero but for `changes`."""
    zeros: dict[str, Any] = dict.fromkeys(Stats.__struct_fields__, 0)
    return Stats(**(zeros | {"memory": {}} | changes))


def test_cached_blocks_are_told_apart_from_free_ones() -> None:
    text = TurnMetrics("n").gauges(stats(blocks_free=10, blocks_cached=4, blocks_held=1, blocks_host=3), 0).decode()
    assert 'midstream_kv_blocks{node="n",state="free"} 6.0' in text
    assert 'midstream_kv_blocks{node="n",state="cached"} 4.0' in text
    assert 'midstream_kv_blocks{node="n",state="held"} 1.0' in text
    assert 'midstream_kv_blocks{node="n",state="host"} 3.0' in text


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


def test_moved_and_recomputed_tokens_and_the_ledger_are_shown() -> None:
    metrics = TurnMetrics("n")
    metrics.gauges(stats(swapped_out_tokens=32, memory={"held": 2.0}), 0)
    text = metrics.gauges(
        stats(swapped_out_tokens=48, swapped_in_tokens=16, recomputed_tokens=5, memory={"held": 2.5}), 0
    ).decode()
    assert 'midstream_swapped_out_tokens_total{node="n"} 48.0' in text
    assert 'midstream_swapped_in_tokens_total{node="n"} 16.0' in text
    assert 'midstream_recomputed_tokens_total{node="n"} 5.0' in text
    assert 'midstream_kv_token_seconds_total{cause="held",node="n"} 2.5' in text


def test_hints_are_counted_by_their_outcome() -> None:
    metrics = TurnMetrics("n")
    metrics.hint(ToolAck(1, "call", "progress", "clipped", 200))
    metrics.hint(ToolAck(1, "call", "started", "rejected", 404))
    text = metrics.gauges(None, 0).decode()
    assert 'midstream_tool_hints_total{node="n",outcome="clipped",state="progress"} 1.0' in text
    assert 'midstream_tool_hints_total{node="n",outcome="rejected",state="started"} 1.0' in text


def test_a_heartbeat_carries_the_numbers_of_the_engine() -> None:
    assert _numbers(stats(steps=3, memory={"held": 1.0}))["steps"] == 3.0
    assert "memory" not in _numbers(stats())
    assert _numbers(None) == {}
