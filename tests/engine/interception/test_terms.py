"""What each term of our rule changes when it is switched off."""

from __future__ import annotations

from dataclasses import replace

from engine.interception.policies.ours import Ours, Terms
from engine.interception.policy import Call, Decision, Held, Load
from engine.interception.profile import PROFILES

# Dropping is as dear as 2.4 s of keeping.
TIMING = PROFILES["gptj-6b"]
LOAD = Load(51_200, 64, 0, 1000, 100_000, 0, 0)


def held(id: int, tokens: int, elapsed_s: float, tool: str = "search") -> Held:
    return Held(id, id, Call(tool), elapsed_s, tokens, tokens)


def taught(terms: Terms, **seconds: float) -> Ours:
    policy = Ours(TIMING, terms)
    for tool, lasts in seconds.items():
        for _ in range(9):
            policy.observe(Call(tool), lasts)
    return policy


def test_hazard_drops_at_once_what_always_lasts_long() -> None:
    for terms, expected in ((Terms(), [Decision(1, drop_tokens=1000)]), (Terms(hazard=False), [])):
        assert taught(terms, search=60.0).decide([held(1, 1000, 0.0)], LOAD) == expected


def test_queue_makes_dropping_dearer() -> None:
    queued = replace(LOAD, queue_delay_s=10.0)
    for terms, expected in ((Terms(), []), (Terms(queue=False), [Decision(1, drop_tokens=1000)])):
        assert Ours(TIMING, terms).decide([held(1, 1000, 5.0)], queued) == expected


def test_partial_moves_some_of_what_is_too_large_for_the_budget() -> None:
    link = replace(LOAD, swap_out_tokens=600, host_free_tokens=100_000)
    for terms, expected in ((Terms(), [Decision(1, swap_tokens=600)]), (Terms(partial=False), [])):
        assert Ours(TIMING, terms).decide([held(1, 3000, 1.0)], link) == expected


def test_knapsack_moves_first_what_saves_most_per_token() -> None:
    link = replace(LOAD, swap_out_tokens=400, host_free_tokens=100_000)
    contexts = [held(1, 3000, 0.0, "fetch"), held(2, 400, 0.0, "ask")]
    # In sum 3,000 tokens for 1 s are more than 400 for 2 s.
    for terms, moved in ((Terms(), 2), (Terms(knapsack=False), 1)):
        assert taught(terms, fetch=1.0, ask=2.0).decide(contexts, link) == [Decision(moved, swap_tokens=400)]


def test_what_is_due_waits_for_a_link_that_stays_shut_only_as_long_as_dropping_costs() -> None:
    shut = replace(LOAD, swap_out_tokens=0, host_free_tokens=100_000)
    policy = Ours(TIMING)
    assert [policy.decide([held(1, 1000, elapsed_s)], shut) for elapsed_s in (1.0, 3.0, 6.0)] == [
        [],
        [],
        [Decision(1, drop_tokens=1000)],
    ]
