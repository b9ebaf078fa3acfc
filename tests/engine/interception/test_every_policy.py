"""Under every policy the same is said, and calls that never end stop nobody else."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from engine import messages as m
from engine.interception.policies import POLICIES
from engine.interception.profile import Profile
from tests.engine.driver import Driver, make_driver, reference_greedy

# Prices of a fraction of a second, so that policies act within a few steps of the clock.
TIMING = Profile("tiny", 10e-3, 1e-3, 0.0, 1e-3, saturation_tokens=16)


class Clock:
    """A quarter of a second passes whenever somebody looks."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        self.now += 0.25
        return self.now


@pytest.fixture(scope="module")
def greedy(tiny_reference: Any) -> Any:
    return cache(lambda prompt, count: reference_greedy(tiny_reference, prompt, count))


def start(tiny: Any, policy: str, host_blocks: int) -> Driver:
    made = POLICIES[policy](TIMING)
    return make_driver(tiny, blocks=18, host_blocks=host_blocks, gbps=1e-5, policy=made, clock=Clock(), step_tokens=16)


@pytest.mark.parametrize("host_blocks", [0, 8], ids=["device only", "with a host tier"])
@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_what_is_said_does_not_depend_on_the_policy_nor_on_when_it_is_interrupted(
    tiny: Any, greedy: Any, policy: str, host_blocks: int
) -> None:
    prompt, other, result = list(range(3, 25)), list(range(40, 56)), [7, 8, 9]
    for point in range(9):
        driver = start(tiny, policy, host_blocks)
        driver.apply(m.Open(1, "foreground"), m.Append(1, prompt), m.Generate(1, 1, m.GenerateParams(8)))
        for _ in range(point):
            driver.step()
        driver.apply(m.Hold(1, "tool", call="c", tool="search"))
        driver.apply(m.Open(2, "foreground"), m.Append(2, other), m.Generate(2, 2, m.GenerateParams(24)))
        for _ in range(4 + 2 * point):
            driver.step()
        said = driver.tokens_of(1)
        assert driver.held_tokens(1) == prompt + said
        driver.apply(m.Resume(1, result, 3, m.GenerateParams(8)))
        driver.run()
        assert said == greedy(tuple(prompt), 8)[: len(said)]
        assert driver.tokens_of(3) == greedy((*prompt, *said, *result), 8)
        assert driver.tokens_of(2) == greedy(tuple(other), 24)
        for context in (1, 2):
            driver.apply(m.Close(context))
        driver.run()
        stats = driver.core.stats()
        assert (stats.blocks_free, stats.blocks_host) == (18, 0)


@pytest.mark.parametrize("host_blocks", [0, 8], ids=["device only", "with a host tier"])
@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_calls_that_never_end_stop_nobody_else(tiny: Any, greedy: Any, policy: str, host_blocks: int) -> None:
    driver = start(tiny, policy, host_blocks)
    for context in range(1, 7):
        # Six contexts of 14 tokens fill more than the pool of 72.
        prompt = [context, *range(30, 43)]
        driver.apply(m.Open(context, "foreground"), m.Append(context, prompt))
        driver.run()
        driver.apply(m.Hold(context, "tool", call="c", tool="search"))
    other = list(range(20, 70))
    driver.apply(m.Open(7, "foreground"), m.Append(7, other), m.Generate(7, 1, m.GenerateParams(16)))
    driver.run()
    assert driver.tokens_of(1) == greedy(tuple(other), 16)
    # They are held all the same.
    driver.apply(m.Resume(3, [5], 2, m.GenerateParams(4)))
    driver.run()
    assert driver.tokens_of(2) == greedy((3, *range(30, 43), 5), 4)


def test_policies_differ_in_what_they_do(tiny: Any) -> None:
    """Else the tests above say little."""
    done: dict[str, tuple[int, int]] = {}
    for policy in ("preserve", "discard", "swap", "infercept", "ours"):
        driver = start(tiny, policy, 8)
        driver.apply(m.Open(1, "foreground"), m.Append(1, list(range(3, 25))))
        driver.run()
        driver.apply(m.Hold(1, "tool", call="c", tool="search"))
        driver.apply(m.Open(2, "foreground"), m.Append(2, [1, 2]), m.Generate(2, 2, m.GenerateParams(10)))
        driver.run()
        counters = driver.core.counters
        discarded = sum(item.tokens for item in driver.of_kind(m.KvMoved) if item.decision == "discard")
        done[policy] = (discarded, counters.swapped_out_tokens)
    assert done["preserve"] == (0, 0)
    assert done["discard"] == (22, 0)
    assert done["swap"] == (0, 24)
    for policy in ("infercept", "ours"):
        assert sum(done[policy]) >= 22
        assert done[policy][1] > 0
