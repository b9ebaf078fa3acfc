from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, pre_tokenizers

from realtime.chat_format import ChatFormat
from realtime.stable_tokens import StableTokenizer, splits_safely

FRAGMENTS = [
    *["don", "'", "t", "'ll", "’s", "S", " ", "  ", "\n", "\r\n", "\t", "7", "1234", ".", "!", "...", "(", "x", "Word"],
    *[
        "é",
        "e",
        "\u0301",
        "\u0327",
        "日本",
        "。",
        "😀",
        "👨‍👩‍👧",
        "\u1112",
        "\u1161",
        "\u11ab",
        "हिन्",
        "</b>",
        "_",
        "-",
    ],
]
typed_text = st.lists(st.one_of(st.sampled_from(FRAGMENTS), st.text(max_size=3)), max_size=25).map("".join)


@pytest.fixture(scope="session", params=["gpt2", "qwen"])
def plain(request: pytest.FixtureRequest, smol_format: ChatFormat, qwen_plain_tokenizer: Tokenizer) -> Tokenizer:
    return smol_format._plain if request.param == "gpt2" else qwen_plain_tokenizer


def test_known_tokenizers_split_safely(plain: Tokenizer) -> None:
    assert splits_safely(plain)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_typing_and_editing_give_the_ids_of_the_whole_text(plain: Tokenizer, data: st.DataObject) -> None:
    stable = StableTokenizer(plain, True)
    for _ in range(4):
        text = data.draw(typed_text)
        assert stable.update(text)[0] == plain.encode(text, add_special_tokens=False).ids
        cut = data.draw(st.integers(0, len(text)))
        edited = text[:cut] + data.draw(typed_text)
        assert stable.update(edited)[0] == plain.encode(edited, add_special_tokens=False).ids


@settings(max_examples=150, deadline=None)
@given(text=typed_text, more=typed_text)
def test_stable_ids_survive_whatever_is_appended(plain: Tokenizer, text: str, more: str) -> None:
    ids, stable = StableTokenizer(plain, True).update(text)
    assert plain.encode(text + more, add_special_tokens=False).ids[:stable] == ids[:stable]


def test_nearly_all_of_a_long_text_is_stable(plain: Tokenizer) -> None:
    text = "The quick brown fox isn't 12 years old, is it? " * 400
    ids, stable = StableTokenizer(plain, True).update(text)
    assert len(ids) - stable <= 3
    assert ids == plain.encode(text, add_special_tokens=False).ids


def test_a_pasted_run_longer_than_a_step_is_encoded_whole(plain: Tokenizer) -> None:
    text = "a" * 3000 + " " * 3000 + "b"
    assert StableTokenizer(plain, True).update(text)[0] == plain.encode(text, add_special_tokens=False).ids


def test_a_tokenizer_that_merges_over_words_has_no_stable_ids(smol_format: ChatFormat) -> None:
    whole_text: Tokenizer = Tokenizer.from_str(smol_format._plain.to_str())
    whole_text.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=True)
    stable = StableTokenizer(whole_text)
    assert stable.update("Hello there, my friend") == (whole_text.encode("Hello there, my friend").ids, 0)


def test_an_empty_text_has_no_ids(plain: Tokenizer) -> None:
    stable = StableTokenizer(plain, True)
    stable.update("something typed here")
    assert stable.update("") == ([], 0)
