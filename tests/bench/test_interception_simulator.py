"""The simulator: the engine's own scheduler on a virtual clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest

from bench.interception.host import RequestFailed
from bench.interception.setting import Setting
from bench.interception.simulator import Simulation, TooLong
from bench.interception.workload import DEFAULT_TRACE, Request, Turn, load_trace, sample
from engine.interception.policies.static import Preserve
from engine.interception.policy import Decision, Held, Load


@dataclass(frozen=True)
class Steady:
    """A step takes 10 ms and 0.1 ms for each token."""

    saturation_tokens: int = 64

    def forward_s(self, query_tokens: int, context_tokens: int) -> float:
        return 0.010 + 0.0001 * query_tokens

    def swap_s(self, tokens: int) -> float:
        return 0.00001 * tokens


SMALL = Setting("small", Steady(), bytes_per_token=1000, kv_tokens=4096, host_tokens=4096, gbps=0.1)


class DropEverything(Preserve):
    """Gives up the KV of every held context."""

    def decide(self, held: Sequence[Held], load: Load) -> list[Decision]:
        return [Decision(one.id, drop_tokens=one.device_tokens) for one in held if one.device_tokens]


class MoveEverything(Preserve):
    """Moves the KV of every held context to the host."""

    def decide(self, held: Sequence[Held], load: Load) -> list[Decision]:
        return [Decision(one.id, swap_tokens=one.device_tokens) for one in held if one.device_tokens]


def simulate(requests: list[Request], policy: Preserve | None = None, setting: Setting = SMALL) -> Simulation:
    simulation = Simulation(setting, policy or Preserve(), requests, step_tokens=64)
    simulation.run()
    simulation.core.check_integrity()
    return simulation


def test_a_request_takes_its_steps_and_its_tools() -> None:
    request = Request("qa", (Turn(64, 3, "search", 5.0), Turn(0, 2)), 0, 1.0)
    (outcome,) = simulate([request]).outcomes
    prefill, decode = 0.010 + 0.0064, 0.0101
    assert outcome.first_token_s == pytest.approx(prefill)
    assert outcome.end_s == pytest.approx(prefill + 2 * decode + 5.0 + 2 * decode)


def test_a_prompt_is_computed_in_chunks_of_the_step() -> None:
    request = Request("qa", (Turn(150, 1),))
    (outcome,) = simulate([request]).outcomes
    assert outcome.end_s == pytest.approx(3 * 0.010 + 0.0150)


def test_what_was_given_up_is_computed_again() -> None:
    request = Request("qa", (Turn(100, 4, "search", 5.0), Turn(10, 2)))
    assert simulate([request]).memory().recomputed_tokens == 0
    # The last token of an answer is not in KV yet.
    assert simulate([request], DropEverything()).memory().recomputed_tokens == 103


def test_what_was_moved_out_comes_back_over_the_link_when_the_tool_returns() -> None:
    request = Request("qa", (Turn(100, 4, "search", 5.0), Turn(10, 2)))
    simulation = simulate([request], MoveEverything())
    counters = simulation.core.counters
    assert counters.recomputed_tokens == 0
    assert counters.swapped_out_tokens == counters.swapped_in_tokens > 0
    (moved,), (kept,) = simulation.outcomes, simulate([request]).outcomes
    assert moved.end_s is not None
    assert kept.end_s is not None
    link_s = counters.swapped_in_tokens * 1000 / 0.1e9
    assert moved.end_s >= kept.end_s + link_s - 1e-9


@pytest.mark.parametrize("policy", [Preserve(), DropEverything(), MoveEverything()])
def test_every_request_is_completed_once_under_pressure(policy: Preserve) -> None:
    requests = sample(load_trace(DEFAULT_TRACE), 2.0, 3, seconds=20)
    simulation = simulate(requests, policy)
    assert all(one.end_s is not None and one.first_token_s is not None for one in simulation.outcomes)
    counters = simulation.core.counters
    useful = sum(turn.append for request in requests for turn in request.turns)
    assert counters.decode_tokens + counters.prefill_tokens - counters.recomputed_tokens >= useful
    assert simulation.core.stats().contexts == 0
    assert simulation.model.pool.free_count == simulation.model.pool.count


def test_memory_sums_up_to_the_pool_times_the_time() -> None:
    simulation = simulate(sample(load_trace(DEFAULT_TRACE), 2.0, 3, seconds=5), DropEverything())
    memory = simulation.memory()
    assert memory.total == pytest.approx(SMALL.kv_tokens * simulation.clock.now)
    assert memory.waste["recompute_own"] > 0
    assert 0 < memory.waste_share < 1


def test_is_the_same_every_time() -> None:
    requests = sample(load_trace(DEFAULT_TRACE), 3.0, 5, seconds=10)
    first, second = simulate(requests), simulate(requests)
    assert first.outcomes == second.outcomes
    assert first.core.counters == second.core.counters


def test_stops_when_the_time_is_up() -> None:
    simulation = Simulation(SMALL, Preserve(), [Request("qa", (Turn(10, 500),))], step_tokens=64)
    simulation.run(until=1.0)
    assert simulation.outcomes[0].end_s is None
    assert 1.0 <= simulation.clock.now < 1.1


def test_contexts_share_no_kv_unless_told_to_keep_it() -> None:
    request = Request("qa", (Turn(100, 4, "search", 5.0), Turn(10, 2)))
    twins = [request, replace(request, number=1, arrival_s=0.5)]
    assert simulate(twins).core.counters.prefix_hit_tokens == 0
    cached = Simulation(SMALL, DropEverything(), twins, step_tokens=64, prefix_cache=True)
    cached.run()
    assert cached.core.counters.prefix_hit_tokens > 0


def test_a_request_that_no_pool_can_hold_is_refused() -> None:
    with pytest.raises(TooLong, match="5001 tokens; the KV pool has 4096"):
        Simulation(SMALL, Preserve(), [Request("qa", (Turn(5000, 1),))], step_tokens=64)


def test_a_step_that_fails_ends_the_run() -> None:
    class Broken(Steady):
        def forward_s(self, query_tokens: int, context_tokens: int) -> float:
            raise ZeroDivisionError

    with pytest.raises(RequestFailed, match="request 0: 0 of 1 tokens, then failed"):
        simulate([Request("qa", (Turn(10, 1),))], setting=replace(SMALL, timing=Broken()))
