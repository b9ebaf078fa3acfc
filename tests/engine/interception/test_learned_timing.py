"""What policies are told about this machine is what its steps and moves took."""

from __future__ import annotations

import pytest

from engine.interception.learned_timing import LearnedTiming
from engine.kv.blocks import BlockPool
from engine.kv.slots import SlotPool
from engine.kv.swap import SimulatedCopier, Swapper
from engine.kv.tiers import Tiers
from engine.step_time import StepTime


def learned() -> StepTime:
    step_time = StepTime()
    for _ in range(100):
        for tokens, context in ((1, 100), (16, 1000), (64, 2000), (256, 4000)):
            step_time.learn(1, tokens, context, 0.010 + 0.0001 * tokens + 1e-6 * context)
    return step_time


def test_steps_are_those_of_its_model() -> None:
    timing = LearnedTiming(learned(), 1, Tiers(BlockPool(8, 4)))
    assert timing.forward_s(100, 2000) == pytest.approx(0.022, rel=0.05)
    # As many tokens as take the 10 ms of an empty step.
    assert timing.saturation_tokens == pytest.approx(100, rel=0.05)


def test_without_any_step_there_is_a_guess() -> None:
    timing = LearnedTiming(StepTime(), 0, Tiers(BlockPool(8, 4)))
    assert timing.saturation_tokens >= 1
    assert 0 < timing.forward_s(1, 0) < timing.forward_s(1000, 0)


def test_moves_are_those_of_the_link() -> None:
    pool = BlockPool(8, 4, SlotPool(8))
    swapper = Swapper(pool.host, SimulatedCopier(), 8, 10**6, gbps=1.0, clock=lambda: 0.0)
    timing = LearnedTiming(StepTime(), 0, Tiers(pool, swapper))
    assert timing.swap_s(4) == pytest.approx(0.001)
    assert timing.swap_s(0) == 0


def test_without_a_host_a_move_never_ends_but_that_of_nothing_does() -> None:
    timing = LearnedTiming(StepTime(), 0, Tiers(BlockPool(8, 4)))
    assert timing.swap_s(1) == float("inf")
    assert timing.swap_s(0) == 0
