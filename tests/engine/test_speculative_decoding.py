"""Guesses are verified: they change how many steps an answer takes, never the answer."""

from __future__ import annotations

from typing import Any

import pytest

from engine import messages as m
from tests.engine.driver import Driver, make_driver, reference_greedy

PROMPT = [5, 17, 3, 88, 41, 9, 9, 30, 2, 64, 71, 12, 50]
SAMPLED = m.Sampling(temperature=0.9, top_p=0.9, seed=5)


def answer(driver: Driver, generation: int, params: m.GenerateParams, prompt: list[int] = PROMPT) -> list[int]:
    driver.apply(m.Open(generation, "foreground"), m.Append(generation, prompt))
    driver.apply(m.Generate(generation, generation, params))
    driver.run()
    return driver.tokens_of(generation)


@pytest.mark.parametrize("sampling", [m.Sampling(), SAMPLED], ids=["greedy", "sampled"])
def test_a_right_draft_is_the_answer_after_one_step(tiny: Any, sampling: m.Sampling) -> None:
    plain = answer(make_driver(tiny, speculate=False), 1, m.GenerateParams(20, sampling))
    driver = make_driver(tiny)
    before = driver.core.counters.steps
    assert answer(driver, 1, m.GenerateParams(20, sampling, draft=plain)) == plain
    assert driver.core.counters.steps - before == 1
    assert driver.finished(1).accepted_tokens == 19
    assert len(driver.of_kind(m.Tokens)) == 1


@pytest.mark.parametrize("sampling", [m.Sampling(), SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("wrong_at", [0, 1, 3, 4, 10, 19])
def test_a_draft_that_goes_wrong_changes_nothing(tiny: Any, sampling: m.Sampling, wrong_at: int) -> None:
    plain = answer(make_driver(tiny, speculate=False), 1, m.GenerateParams(20, sampling))
    draft = [*plain[:wrong_at], (plain[wrong_at] + 1) % 96, *plain[wrong_at + 1 :]]
    driver = make_driver(tiny)
    assert answer(driver, 1, m.GenerateParams(20, sampling, draft=draft)) == plain
    assert driver.finished(1).accepted_tokens >= min(wrong_at, 18)


def test_repeated_text_is_guessed_from_the_prompt(tiny: Any, tiny_reference: Any) -> None:
    """The tiny model falls into a loop, which prompt lookup sees."""
    expected = reference_greedy(tiny_reference, PROMPT, 120)
    driver = make_driver(tiny)
    assert answer(driver, 1, m.GenerateParams(120)) == expected
    finished = driver.finished(1)
    assert 0 < finished.accepted_tokens <= finished.drafted_tokens
    assert driver.core.counters.steps < 120


@pytest.mark.parametrize(
    "sampling",
    [
        m.Sampling(repetition_penalty=1.3),
        m.Sampling(presence_penalty=0.7, frequency_penalty=0.4),
        m.Sampling(temperature=0.7, frequency_penalty=1.0, seed=2, logit_bias={3: 2.0, 88: -100.0}),
    ],
)
def test_penalties_are_the_same_with_drafts(tiny: Any, sampling: m.Sampling) -> None:
    plain = answer(make_driver(tiny, speculate=False), 1, m.GenerateParams(30, sampling))
    assert answer(make_driver(tiny), 1, m.GenerateParams(30, sampling, draft=plain)) == plain
    half_right = plain[:9] + plain[3:9] + plain[9:]
    assert answer(make_driver(tiny), 1, m.GenerateParams(30, sampling, draft=half_right)) == plain
    assert 88 not in plain or 88 not in sampling.logit_bias


def test_logprobs_are_the_same_with_drafts(tiny: Any) -> None:
    params = m.GenerateParams(12, top_logprobs=3)
    plain, drafted = make_driver(tiny, speculate=False), make_driver(tiny)
    tokens = answer(plain, 1, params)
    answer(drafted, 1, m.GenerateParams(12, top_logprobs=3, draft=tokens))
    flat = [[entry for item in d.of_kind(m.Tokens) for entry in item.logprobs] for d in (plain, drafted)]
    assert [len(entries) for entries in flat] == [12, 12]
    for one, other, token in zip(*flat, tokens, strict=True):
        assert one.top[0][0] == token
        assert one.chosen == pytest.approx(other.chosen, abs=1e-4)
        assert [t for t, _ in one.top] == [t for t, _ in other.top]


def test_a_stop_token_inside_a_draft_ends_the_answer_there(tiny: Any, tiny_reference: Any) -> None:
    plain = reference_greedy(tiny_reference, PROMPT, 30)
    stop = plain[7]
    params = m.GenerateParams(30, stop_token_ids=[stop], draft=plain)
    driver = make_driver(tiny)
    assert answer(driver, 1, params) == plain[: plain.index(stop)]
    assert driver.finished(1).reason == "stop"
    assert driver.held_tokens(1) == PROMPT + plain[: plain.index(stop)]


def test_a_context_goes_on_rightly_after_a_rejected_draft(tiny: Any, tiny_reference: Any) -> None:
    """Nothing of the rejected tokens may be left in KV that others or later turns read."""
    plain = reference_greedy(tiny_reference, PROMPT, 8)
    driver = make_driver(tiny)
    answer(driver, 1, m.GenerateParams(8, draft=[*plain[:2], *[7] * 30]))
    driver.apply(m.Append(1, [4, 4, 8]), m.Generate(1, 2, m.GenerateParams(10)))
    driver.run()
    assert driver.tokens_of(2) == reference_greedy(tiny_reference, [*PROMPT, *plain, 4, 4, 8], 10)
    assert answer(driver, 9, m.GenerateParams(8)) == plain


def test_drafts_take_no_blocks_from_anybody(tiny: Any) -> None:
    driver = make_driver(tiny, blocks=10)
    driver.apply(m.Open(2, "background"), m.Append(2, [7, 7, 9, 9] * 4))
    driver.run()
    answer(driver, 1, m.GenerateParams(4, draft=[3] * 60))
    assert [moved for moved in driver.of_kind(m.KvMoved) if moved.location == "none"] == []
