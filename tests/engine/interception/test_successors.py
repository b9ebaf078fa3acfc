"""Continuum's deadline and MARS's early choice."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from engine.interception.policies import POLICIES
from engine.interception.policy import Call, Decision, Held, Load, Policy
from engine.interception.profile import PROFILES

LOAD = Load(51_200, 64, 0, 1000, 100_000, 0, 0)
DROPPED = [Decision(1, drop_tokens=1000)]


def taught(name: str, durations: Iterable[float]) -> Policy:
    policy = POLICIES[name](PROFILES["gptj-6b"])
    for seconds in durations:
        policy.observe(Call("search"), seconds)
    return policy


def waiting(elapsed_s: float) -> list[Held]:
    return [Held(1, 1, Call("search"), elapsed_s, 1000, 1000)]


def test_a_pin_lasts_as_long_as_it_is_likely_to_pay() -> None:
    policy = taught("continuum", [1.0] * 9 + [60.0])
    # 0.9 * (3 s + reload) - 1 s is more than any other limit, or none, would gain.
    queued = replace(LOAD, queue_delay_s=3.0)
    assert policy.decide(waiting(0.9), queued) == []
    assert policy.decide(waiting(1.1), queued) == DROPPED


def test_without_a_queue_a_short_reload_is_not_worth_a_pin() -> None:
    assert taught("continuum", [1.0] * 9 + [60.0]).decide(waiting(0.0), LOAD) == DROPPED


def test_an_unknown_tool_is_pinned_by_the_prior_only_if_missing_it_is_dear() -> None:
    policy = taught("continuum", [])
    assert policy.decide(waiting(0.0), LOAD) == DROPPED
    # 2 s * ln(20 / 2) = 4.6 s.
    assert policy.decide(waiting(4.0), replace(LOAD, queue_delay_s=20.0)) == []
    assert policy.decide(waiting(5.0), replace(LOAD, queue_delay_s=20.0)) == DROPPED


def test_an_expected_duration_is_judged_once_when_the_call_begins() -> None:
    brief = taught("mars", [0.01] * 9)
    assert brief.decide(waiting(0.0), LOAD) == []
    assert brief.decide(waiting(500.0), LOAD) == []


def test_what_should_last_is_dropped_where_a_move_would_stall_more() -> None:
    # Moving 1,000 tokens takes 46 ms twice, computing them again 56 ms once; all others wait for either.
    assert taught("mars", [60.0] * 9).decide(waiting(0.0), LOAD) == DROPPED
