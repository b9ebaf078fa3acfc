from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from realtime.chat_format import ChatFormat
from realtime.detokenizer import Detokenizer, TokenBytes, UnsupportedTokenizer

texts = st.text(
    st.one_of(st.characters(exclude_categories=["Cs", "Cn"]), st.sampled_from("日本語😀👍🏽é\n ")), max_size=30
)


def pieces_of(detokenizer: Detokenizer, ids: list[int]) -> list[str]:
    return [*(detokenizer.feed([id_]) for id_ in ids), detokenizer.finish()]


@settings(max_examples=200, deadline=None)
@given(text=texts)
def test_no_piece_of_text_holds_half_a_character(smol_format: ChatFormat, smol_tokenizer: Tokenizer, text: str) -> None:
    ids = smol_format.text(text)
    pieces = pieces_of(smol_format.detokenizer(), ids)
    # The vocabulary has no token for some control characters, so the text itself need not come back.
    assert "".join(pieces) == smol_tokenizer.decode(ids)
    assert "\ufffd" in text or not any("\ufffd" in piece for piece in pieces)


@settings(max_examples=200, deadline=None)
@given(ids=st.lists(st.one_of(st.integers(0, 49151), st.integers(0, 300)), max_size=40))
def test_any_ids_decode_as_the_tokenizer_decodes_them(
    smol_format: ChatFormat, smol_tokenizer: Tokenizer, ids: list[int]
) -> None:
    assert "".join(pieces_of(smol_format.detokenizer(), ids)) == smol_tokenizer.decode(ids, skip_special_tokens=True)


def test_ids_outside_the_vocabulary_are_no_text(smol_format: ChatFormat) -> None:
    assert smol_format.detokenizer().feed([10_000_000]) == ""


def test_an_added_token_outside_the_byte_alphabet_is_its_own_text(smol_format: ChatFormat) -> None:
    tokenizer: Tokenizer = Tokenizer.from_str(smol_format.tokenizer.to_str())
    tokenizer.add_tokens(["｜tool｜"])
    ids = tokenizer.encode("｜tool｜", add_special_tokens=False).ids
    assert len(ids) == 1
    assert Detokenizer(TokenBytes(tokenizer)).feed(ids) == "｜tool｜"


def test_sentencepiece_tokens_decode_with_byte_fallback() -> None:
    vocab = {"<unk>": 0, "▁Hi": 1, "▁there": 2, "<0xE2>": 3, "<0x82>": 4, "<0xAC>": 5}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>", byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    ids = [1, 2, 3, 4, 5]
    pieces = pieces_of(Detokenizer(TokenBytes(tokenizer)), ids)
    assert pieces == ["Hi", " there", "", "", "€", ""]
    assert "".join(pieces) == tokenizer.decode(ids)


@pytest.mark.parametrize("decoder", [None, decoders.WordPiece()])
def test_other_decoders_are_refused(decoder: decoders.Decoder | None) -> None:
    tokenizer = Tokenizer(models.BPE(vocab={"a": 0}, merges=[]))
    if decoder is not None:
        tokenizer.decoder = decoder
    with pytest.raises(UnsupportedTokenizer):
        TokenBytes(tokenizer)
