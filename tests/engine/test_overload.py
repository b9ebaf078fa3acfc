"""A full engine says so at once and goes on with what it has; background work is limited and waits without spinning."""

from __future__ import annotations

import math
from typing import Any

from engine import messages as m
from engine.rate_limit import RateLimits
from tests.engine.driver import make_driver

PROMPT = [5, 17, 3, 88, 41, 9, 9, 30, 2, 64, 71, 12, 50]


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_too_many_waiting_generations_are_refused_and_the_others_answered(tiny: Any) -> None:
    driver = make_driver(tiny, max_waiting=3)
    for context in range(5):
        driver.apply(m.Open(context, "foreground"), m.Append(context, [context, *PROMPT]))
        driver.apply(m.Generate(context, context, m.GenerateParams(4)))
    driver.run()
    refused = driver.of_kind(m.Failed)
    assert [(failure.generation, failure.code) for failure in refused] == [
        (3, "engine_overloaded"),
        (4, "engine_overloaded"),
    ]
    assert "3" in refused[0].message
    assert [driver.finished(i).output_tokens for i in range(3)] == [4, 4, 4]
    driver.apply(m.Generate(4, 40, m.GenerateParams(4)))
    driver.run()
    assert driver.finished(40).output_tokens == 4


def test_background_work_never_makes_the_engine_full(tiny: Any) -> None:
    driver = make_driver(tiny, max_waiting=2)
    for context in range(10):
        driver.apply(m.Open(context, "background"), m.Append(context, [context, *PROMPT]))
        driver.apply(m.Generate(context, context, m.GenerateParams(4)))
    driver.apply(m.Open(99, "foreground"), m.Append(99, PROMPT), m.Generate(99, 99, m.GenerateParams(4)))
    driver.run()
    assert driver.of_kind(m.Failed) == []


def test_a_session_beyond_its_background_rate_waits_and_is_not_polled(tiny: Any) -> None:
    clock = Clock()
    limits = RateLimits(0.0, 10.0, clock())
    driver = make_driver(tiny, limits=limits, clock=clock)
    driver.apply(m.Open(1, "background", payer=7), m.Append(1, PROMPT * 3))
    for _ in range(20):
        if driver.core.wait_seconds() > 0:
            break
        driver.step()
    done = driver.core._contexts[1].kv_length
    assert 10 <= done < 39
    wait = driver.core.wait_seconds()
    assert 0 < wait < math.inf
    driver.apply(m.Open(2, "background", payer=8), m.Append(2, PROMPT[:6]))
    driver.step()
    assert driver.core._contexts[2].kv_length == 6
    clock.now += wait
    driver.step()
    assert driver.core._contexts[1].kv_length > done


def test_a_limited_context_runs_at_once_when_it_becomes_foreground(tiny: Any) -> None:
    clock = Clock()
    driver = make_driver(tiny, limits=RateLimits(0.0, 5.0, clock()), clock=clock)
    driver.apply(m.Open(1, "background", payer=7), m.Append(1, PROMPT * 3))
    while driver.core.wait_seconds() == 0:
        driver.step()
    driver.apply(m.SetPriority(1, "foreground"))
    driver.run()
    assert driver.core._contexts[1].kv_length == 39
