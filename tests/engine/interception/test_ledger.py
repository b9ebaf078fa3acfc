from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.random_policy import RandomPolicy
from engine import messages as m
from engine.interception.ledger import Ledger, Usage
from tests.engine.driver import make_driver

TOKENS = st.integers(0, 10_000)
USAGE = st.builds(Usage, TOKENS, TOKENS, TOKENS, TOKENS, TOKENS, TOKENS, TOKENS)


@given(st.lists(st.tuples(st.floats(0, 100), USAGE, st.floats(0, 200), st.booleans()), max_size=20))
def test_causes_sum_up_to_memory_times_time(periods: list[tuple[float, Usage, float, bool]]) -> None:
    ledger, expected = Ledger(), 0.0
    for seconds, usage, recompute_s, stalled in periods:
        ledger.add(seconds, usage, recompute_s=recompute_s, stalled=stalled)
        held = usage.running + usage.recomputing + usage.restoring + usage.held
        expected += seconds * (held + usage.idle + usage.cached + usage.free)
    assert ledger.total == pytest.approx(expected)
    assert 0 <= ledger.wasted <= ledger.total * (1 + 1e-9)


def test_recompute_costs_whoever_is_computed_again_and_all_who_wait_for_it() -> None:
    ledger = Ledger()
    ledger.add(2.0, Usage(running=100, recomputing=30, held=7, free=5), recompute_s=0.5)
    assert (ledger.useful, ledger.recompute_bystanders, ledger.recompute_own) == (150, 50, 60)
    assert (ledger.held, ledger.free) == (14, 10)
    assert ledger.wasted == 124


def test_a_step_that_waits_for_a_move_wastes_the_memory_of_all_that_would_run() -> None:
    ledger = Ledger()
    ledger.add(2.0, Usage(running=100, restoring=10), stalled=True)
    assert ledger.swap_stall == 220
    assert ledger.useful == 0


class Clock:
    """Goes on by a second whenever it is looked at."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def test_the_engine_books_all_of_its_pool_all_of_the_time(tiny: Any) -> None:
    clock = Clock()
    driver = make_driver(tiny, blocks=24, host_blocks=8, gbps=1.0, policy=RandomPolicy(3), clock=clock)
    begun = clock.now
    for i in range(1, 5):
        driver.apply(m.Open(i, "foreground"), m.Append(i, [i, *range(20)]), m.Generate(i, i, m.GenerateParams(6)))
    for _ in range(6):
        driver.step()
    driver.apply(m.Hold(1, "tool", tool="a"), m.Hold(2, "tool", tool="b"))
    driver.run()
    driver.apply(m.Resume(1, [5, 6], 11, m.GenerateParams(4)), m.Resume(2, [7], 12, m.GenerateParams(4)))
    driver.run()
    ledger = driver.core.ledger()
    # The engine looked at the clock a few times before it opened its books.
    assert ledger.total == pytest.approx(24 * 4 * (clock.now - begun), rel=0.05)
    assert ledger.held > 0
    assert ledger.useful > 0
    assert driver.core.stats().memory["held"] == ledger.held
