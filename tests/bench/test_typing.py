"""Scripts of timed edits: whatever the habits, the text is there at the end."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.typing.keystrokes import Habits, constant, realistic
from bench.typing.script import Edit, Script
from bench.typing.speech import Recogniser, recognised

QUESTION = (
    "Natalia sold 48 clips in April, and then she sold half as many clips in May. It rained a lot. "
    "How many clips did Natalia sell altogether in April and May?"
)
CLUMSY = Habits(typo=0.3, mend=0.5, paste=0.0)
texts = st.text(max_size=200) | st.sampled_from([QUESTION, "one\n\ntwo  three. \n", "déjà vu 🙂🙂. Naïve?", " "])
seeds = st.integers(0, 2**32)
habits = st.builds(
    Habits, typo=st.floats(0, 1), mend=st.floats(0, 1), paste=st.floats(0, 1), min_paste=st.integers(1, 30)
)


def check(script: Script, text: str) -> None:
    assert script.text == text
    assert all(one.at_s <= following.at_s for one, following in pairwise(script.edits))
    assert not script.edits or script.edits[0].at_s == 0


@given(texts, st.floats(1, 10_000))
def test_a_constant_rate_yields_the_text(text: str, cpm: float) -> None:
    check(constant(text, cpm), text)


@given(texts, seeds, habits)
def test_realistic_keystrokes_yield_the_text(text: str, seed: int, person: Habits) -> None:
    check(realistic(text, 240, seed, person), text)


@given(texts, seeds, st.floats(0, 1), st.floats(0, 1))
def test_recognised_speech_yields_the_text(text: str, seed: int, unsure: float, misheard: float) -> None:
    check(recognised(text, 600, seed, Recogniser(unsure=unsure, misheard=misheard)), text)


@given(texts, seeds)
def test_the_same_seed_gives_the_same_script(text: str, seed: int) -> None:
    assert realistic(text, seed=seed) == realistic(text, seed=seed)
    assert recognised(text, seed=seed) == recognised(text, seed=seed)


def test_another_seed_gives_another_script() -> None:
    assert realistic(QUESTION, seed=1) != realistic(QUESTION, seed=2)
    assert recognised(QUESTION, seed=1) != recognised(QUESTION, seed=2)


def test_a_constant_rate_is_one_key_after_the_other() -> None:
    assert constant("abc", 240).edits == [Edit(0, 0, 0, "a"), Edit(0.25, 1, 1, "b"), Edit(0.5, 2, 2, "c")]


def test_people_take_as_long_as_the_rate_says() -> None:
    assert realistic(QUESTION, 240, 3).duration_s == pytest.approx(constant(QUESTION, 240).duration_s)


def test_people_pause_between_sentences() -> None:
    script = realistic(QUESTION, 240, 5, Habits(typo=0, mend=0, paste=0))
    gaps = {one.start: following.at_s - one.at_s for one, following in pairwise(script.edits)}
    longest = max(gaps, key=lambda position: gaps[position])
    assert QUESTION[: longest + 1].rstrip()[-1] == "."


def test_wrong_keys_are_taken_back_and_words_mended_in_the_middle() -> None:
    edits = realistic(QUESTION, 240, 1, CLUMSY).edits
    assert any(edit.text == "" and edit.end == edit.start + 1 for edit in edits)
    assert any(len(edit.text) == edit.end - edit.start > 3 for edit in edits)


def test_a_passage_may_be_pasted() -> None:
    edits = realistic(QUESTION, 240, 1, Habits(paste=1, min_paste=20)).edits
    assert any("Natalia sold 48 clips" in edit.text for edit in edits)


def test_recognised_words_are_revised_after_they_were_shown() -> None:
    edits = recognised(QUESTION, 600, 1).edits
    rewrites = [edit for edit in edits if edit.end > edit.start]
    assert len(rewrites) > len(edits) / 3
    assert recognised(QUESTION, 600, 1).duration_s == pytest.approx(len(QUESTION) / 10, abs=2)


def test_what_is_attached_comes_with_the_last_character() -> None:
    script = constant("Why?", 240).ending_with("\nA. because")
    assert script.text == "Why?\nA. because"
    assert script.duration_s == constant("Why?", 240).duration_s
    assert constant("Why?").ending_with("") == constant("Why?")


def test_an_edit_outside_the_text_is_refused() -> None:
    with pytest.raises(ValueError, match="not inside"):
        Edit(0, 2, 3, "x").apply("ab")
