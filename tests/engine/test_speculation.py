"""What is guessed, without a model."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from engine.model.sampler import verify
from engine.speculation import Proposer

TOKENS = st.lists(st.integers(0, 4), max_size=40)


def test_a_draft_is_proposed_whole_and_then_its_rest() -> None:
    draft = list(range(100, 130))
    proposer = Proposer([1, 2, 3], draft)
    assert proposer.propose([1, 2, 3]) == draft
    assert proposer.propose([1, 2, 3, *draft[:7]]) == draft[7:]


def test_after_a_mismatch_the_draft_is_found_again_by_lookup() -> None:
    draft = [10, 11, 12, 13, 14, 15, 16, 17]
    proposer = Proposer([1, 2, 3], draft)
    proposer.propose([1, 2, 3])
    said = [1, 2, 3, 10, 99, 12, 13, 14]
    assert proposer.propose(said) == [15, 16, 17]


def test_what_followed_the_last_tokens_before_is_proposed() -> None:
    text = [7, 8, 9, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert Proposer(text).propose(text) == [1, 2, 3, 4]


def test_the_most_recent_occurrence_wins() -> None:
    text = [7, 8, 9, 1, 1, 1, 7, 8, 9, 2, 2, 2, 7, 8, 9]
    assert Proposer(text).propose(text)[:3] == [2, 2, 2]


def test_text_that_repeats_itself_is_proposed_past_its_end() -> None:
    text = [1, 7, 8, 7, 8, 7, 8]
    assert Proposer(text).propose(text) == [7, 8, 7, 8]
    text = [1, 7, 7, 7, 7]
    assert Proposer(text).propose(text) == [7, 7, 7, 7]


def test_longer_matches_win_over_later_ones() -> None:
    text = [6, 7, 8, 9, 1, 1, 1, 5, 8, 9, 2, 2, 2, 6, 7, 8, 9]
    assert Proposer(text).propose(text)[:3] == [1, 1, 1]


def test_nothing_is_proposed_for_new_text() -> None:
    assert Proposer([]).propose([]) == []
    assert Proposer([1]).propose([1]) == []
    assert Proposer([1, 2]).propose([1, 2]) == []
    assert Proposer([1, 2, 3, 4, 5]).propose([1, 2, 3, 4, 5]) == []


def test_good_guesses_grow_and_useless_ones_pause() -> None:
    text = list(range(50)) * 3
    proposer = Proposer(text)
    lengths = []
    for _ in range(4):
        guess = proposer.propose(text)
        lengths.append(len(guess))
        text = text + guess
        proposer.observe(len(text), len(guess), len(guess))
    assert lengths == [4, 8, 16, 16]
    tried = 0
    for _ in range(300):
        guess = proposer.propose(text)
        tried += bool(guess)
        text = [*text, (text[-1] + 1) % 50]
        proposer.observe(len(text), len(guess), 0)
    assert tried < 12


@given(TOKENS, TOKENS, st.integers(1, 30))
def test_verified_guesses_give_the_same_text_as_none(prompt: list[int], draft: list[int], count: int) -> None:
    """Against a made-up model whose next token is a function of all before."""

    def next_token(text: list[int]) -> int:
        return sum(text[-3:]) * 7 % 5

    plain = _generate(next_token, prompt, count)
    proposer = Proposer(prompt, draft)
    text = list(prompt)
    while len(text) < len(prompt) + count:
        guess = proposer.propose(text)[: len(prompt) + count - len(text) - 1]
        sampled = [next_token(text + guess[:i]) for i in range(len(guess) + 1)]
        accepted = verify(sampled, guess)
        text += sampled[: accepted + 1]
        proposer.observe(len(text), len(guess), accepted)
    assert text == plain


def _generate(next_token: Callable[[list[int]], int], prompt: list[int], count: int) -> list[int]:
    text = list(prompt)
    for _ in range(count):
        text.append(next_token(text))
    return text
