from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from realtime.chat_format import ChatFormat
from realtime.simultaneous.layouts import (
    ANSWER_CUE,
    TYPING_CUE,
    Entry,
    answer_prompt,
    chat_prompt,
    inference_prompt,
    open_turn,
)

segments = st.sampled_from(["A train leaves at 3. ", "It travels 60 miles. ", "今天天气很好。", "How far? \n\n"])
notes = st.one_of(st.none(), st.lists(st.integers(20, 900), min_size=1, max_size=5).map(tuple))
entry_lists = st.lists(st.builds(Entry, segments, notes), max_size=5)


def written(fmt: ChatFormat, ids: list[int]) -> str:
    text: str = fmt.tokenizer.decode(ids, skip_special_tokens=False)
    return text


@pytest.fixture(scope="module")
def head(smol_format: ChatFormat) -> list[int]:
    return smol_format.system("Be brief.")


@pytest.fixture(scope="module")
def history(smol_format: ChatFormat) -> list[int]:
    fmt = smol_format
    return [
        *fmt.user_open,
        *fmt.text("Hi"),
        *fmt.user_close,
        *fmt.assistant_open,
        *fmt.text("Hey"),
        *fmt.assistant_close,
    ]


def test_users_and_notes_alternate(smol_format: ChatFormat, head: list[int], history: list[int]) -> None:
    fmt = smol_format
    note = tuple(fmt.text("inference. It arrives at 4."))
    entries = [Entry("A train leaves at 3. "), Entry("It needs an hour. ", note)]
    start = f"{written(fmt, head + history)}<|im_start|>user\nA train leaves at 3. It needs an hour. {TYPING_CUE}"
    start += "<|im_end|>\n<|im_start|>assistant\ninference. It arrives at 4.<|im_end|>\n<|im_start|>user\n"
    ending = "<|im_end|>\n<|im_start|>assistant\n"
    step = inference_prompt(fmt, head, history, entries, "It is late. ")
    assert written(fmt, step) == f"{start}It is late. {TYPING_CUE}{ending}"
    answer = answer_prompt(fmt, head, history, entries, "When?")
    assert written(fmt, answer) == f"{start}When?{ANSWER_CUE}{ending}"


@settings(max_examples=60, deadline=None)
@given(entries=entry_lists, new=segments, note=st.lists(st.integers(20, 900), min_size=1, max_size=5), tail=segments)
def test_every_later_prompt_begins_with_a_noted_step(
    smol_format: ChatFormat,
    head: list[int],
    history: list[int],
    entries: list[Entry],
    new: str,
    note: list[int],
    tail: str,
) -> None:
    step = [*inference_prompt(smol_format, head, history, entries, new), *note]
    after = [*entries, Entry(new, tuple(note))]
    for later in (
        inference_prompt(smol_format, head, history, after, tail),
        answer_prompt(smol_format, head, history, after, tail),
        open_turn(smol_format, head, history, after)[0],
    ):
        assert later[: len(step)] == step


@settings(max_examples=60, deadline=None)
@given(waits=st.lists(segments, max_size=4), tail=segments)
def test_without_notes_the_answer_prompt_is_the_ordinary_one(
    smol_format: ChatFormat, head: list[int], history: list[int], waits: list[str], tail: str
) -> None:
    entries = [Entry(segment) for segment in waits]
    text = "".join(waits) + tail
    assert answer_prompt(smol_format, head, history, entries, tail) == chat_prompt(smol_format, head, history, text)


@settings(max_examples=60, deadline=None)
@given(entries=entry_lists, tail=segments)
def test_the_open_turn_is_where_both_stages_continue(
    smol_format: ChatFormat, head: list[int], history: list[int], entries: list[Entry], tail: str
) -> None:
    prefix, waiting = open_turn(smol_format, head, history, entries)
    turn = [*prefix, *smol_format.text(waiting + tail)]
    assert inference_prompt(smol_format, head, history, entries, tail)[: len(turn)] == turn
    assert answer_prompt(smol_format, head, history, entries, tail)[: len(turn)] == turn


def test_a_message_that_was_read_to_its_end_is_closed_by_the_cue_alone(smol_format: ChatFormat) -> None:
    entries = [Entry("How far is it? ", tuple(smol_format.text("inference. 60 miles.")))]
    prompt = written(smol_format, answer_prompt(smol_format, [], [], entries, ""))
    assert prompt.endswith(f"<|im_start|>user\n{ANSWER_CUE.lstrip()}<|im_end|>\n<|im_start|>assistant\n")
