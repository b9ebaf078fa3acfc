"""KV is on its way back as soon as a call is known to have ended, not only when its result comes."""

from __future__ import annotations

from typing import Any

import pytest

from engine import messages as m
from engine.interception.policies.static import Swap
from engine.interception.policy import Policy
from tests.engine.driver import Driver, make_driver, reference_greedy

PROMPT = list(range(3, 25))


class Move(Swap):
    """The same beside steps."""

    name = "move"
    stalls = False


POLICIES: list[Policy] = [Swap(), Move()]


class Clock:
    """A hundredth of a second passes whenever somebody looks."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        self.now += 0.01
        return self.now


def away(tiny: Any, policy: Policy) -> Driver:
    """A held context with all of its KV on the host, in an engine that has nothing else to do."""
    driver = make_driver(tiny, blocks=18, host_blocks=8, gbps=1e-4, policy=policy, clock=Clock())
    driver.apply(m.Open(1, "foreground"), m.Append(1, PROMPT))
    driver.run()
    driver.apply(m.Hold(1, "tool", call="c", tool="search"))
    for _ in range(100):
        driver.step()
    assert driver.core.stats().blocks_host == 6
    assert not driver.core.has_work
    assert driver.core.stats().blocks_free == 18
    return driver


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
@pytest.mark.parametrize("state", ["finished", "failed", "cancelled"])
def test_an_idle_engine_brings_kv_back_before_the_result_is_there(
    tiny: Any, tiny_reference: Any, policy: Policy, state: m.ToolState
) -> None:
    driver = away(tiny, policy)
    driver.apply(m.ToolEvent(1, "c", state))
    driver.run()
    assert (driver.core.stats().blocks_held, driver.core.stats().blocks_host) == (6, 0)
    driver.apply(m.Resume(1, [7, 8], 1, m.GenerateParams(4)))
    driver.run()
    assert driver.finished(1).cached_tokens == len(PROMPT)
    assert driver.tokens_of(1) == reference_greedy(tiny_reference, [*PROMPT, 7, 8], 4)


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
@pytest.mark.parametrize("steps", range(4))
def test_an_abort_while_it_comes_back_leaves_nothing_held(tiny: Any, policy: Policy, steps: int) -> None:
    driver = away(tiny, policy)
    driver.apply(m.ToolEvent(1, "c", "finished"))
    for _ in range(steps):
        driver.step()
    driver.apply(m.Close(1))
    driver.run()
    assert (driver.core.stats().blocks_free, driver.core.stats().blocks_host) == (18, 0)
