"""Token ids to text, piece by piece, in time proportional to the new tokens only."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable

from tokenizers import Tokenizer

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class UnsupportedTokenizer(Exception):
    """The tokenizer's decoder is neither byte-level BPE nor SentencePiece style."""


class TokenBytes:
    """The bytes that each token stands for; special tokens stand for none. One per model, shared."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        kinds = _decoder_kinds(tokenizer)
        self._byte_level = "ByteLevel" in kinds
        if not self._byte_level and not kinds & {"Metaspace", "ByteFallback"}:
            raise UnsupportedTokenizer(f"cannot decode incrementally with {sorted(kinds)}")
        self.strips_leading_space = not self._byte_level and bool(kinds & {"Strip", "Metaspace"})
        added = tokenizer.get_added_tokens_decoder()
        self._known: dict[int, bytes] = {id_: b"" for id_, token in added.items() if token.special}

    def __getitem__(self, token_id: int) -> bytes:
        if token_id not in self._known:
            token = self._tokenizer.id_to_token(token_id) or ""
            self._known[token_id] = _byte_level(token) if self._byte_level else _sentencepiece(token)
        return self._known[token_id]


class Detokenizer:
    """The text of one generation. A character comes out when its last byte is in; invalid bytes become U+FFFD."""

    def __init__(self, token_bytes: TokenBytes) -> None:
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._strip = token_bytes.strips_leading_space

    def feed(self, token_ids: Iterable[int]) -> str:
        """The text that these tokens complete; may be empty."""
        return self._decode(b"".join(self._token_bytes[id_] for id_ in token_ids), final=False)

    def finish(self) -> str:
        """What is left at the end: U+FFFD for a character cut in the middle, else nothing."""
        return self._decode(b"", final=True)

    def _decode(self, data: bytes, final: bool) -> str:
        text = self._decoder.decode(data, final)
        if self._strip and text:
            self._strip = False
            return text.removeprefix(" ")
        return text


def _decoder_kinds(tokenizer: Tokenizer) -> set[str]:
    if tokenizer.decoder is None:
        return set()
    state = json.loads(tokenizer.decoder.__getstate__())
    return {part["type"] for part in state.get("decoders", [state])}


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-ins for the 256 bytes: printable Latin-1 stands for itself, the rest from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_ALPHABET = _byte_alphabet()


def _byte_level(token: str) -> bytes:
    # An added token is written in plain text; as a whole it may be outside the alphabet.
    if all(char in _ALPHABET for char in token):
        return bytes(_ALPHABET[char] for char in token)
    return token.encode()


def _sentencepiece(token: str) -> bytes:
    if match := _BYTE_TOKEN.fullmatch(token):
        return bytes([int(match.group(1), 16)])
    return token.replace("\u2581", " ").encode()
