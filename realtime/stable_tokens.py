"""Token ids of text that is still being typed, and how many of them later typing cannot change."""

from __future__ import annotations

import unicodedata
from bisect import bisect_right
from itertools import pairwise

from tokenizers import Tokenizer

_STEP = 1024
_APOSTROPHES = ("'", "\u2019")


class StableTokenizer:
    """One input buffer's tokenizer. Typing at the end costs only what comes after the last stable boundary.

    `splits` is the result of `splits_safely`, computed here when None. Where it is False, every
    text is encoded whole and nothing is called stable.
    """

    def __init__(self, tokenizer: Tokenizer, splits: bool | None = None) -> None:
        self._tokenizer = tokenizer
        self._splits_safely = splits_safely(tokenizer) if splits is None else splits
        self._text = ""
        self._ids: list[int] = []
        # Stable boundaries in order: (characters before it, tokens before it, length of the text that proved it).
        self._boundaries: list[tuple[int, int, int]] = []

    def update(self, text: str) -> tuple[list[int], int]:
        """All ids of `text`, and how many of them stay the same whatever is appended to it."""
        if not self._splits_safely:
            return self._tokenizer.encode(text, add_special_tokens=False).ids, 0
        self._rewind(_common_length(self._text, text))
        self._text = text
        tail = self._extend(text)
        return self._ids + tail, len(self._ids)

    def _rewind(self, common: int) -> None:
        """Forgets the boundaries that need more than the first `common` characters as their proof."""
        keep = bisect_right(self._boundaries, common, key=lambda boundary: boundary[2])
        del self._boundaries[keep:]
        del self._ids[self._boundaries[-1][1] if self._boundaries else 0 :]

    def _extend(self, text: str) -> list[int]:
        """Adds stable ids in steps, as if the text had been typed, and returns the ids after them."""
        step = _STEP
        while True:
            start = self._boundaries[-1][0] if self._boundaries else 0
            end = min(start + step, len(text))
            ids, characters, tokens = _encode_stable(self._tokenizer, text[start:end])
            if tokens:
                self._boundaries.append((start + characters, len(self._ids) + tokens, end))
                self._ids += ids[:tokens]
            if end == len(text):
                return ids[tokens:]
            # One unbroken run can be longer than a step.
            step = _STEP if tokens else 2 * step


def splits_safely(tokenizer: Tokenizer) -> bool:
    """Whether encoding the parts around each stable boundary gives the ids of the whole, tried on hard texts."""
    for text in _HARD_TEXTS:
        whole = tokenizer.encode(text, add_special_tokens=False).ids
        for end in range(len(text) + 1):
            ids, characters, tokens = _encode_stable(tokenizer, text[:end])
            rest = tokenizer.encode(text[characters:], add_special_tokens=False).ids
            if ids[:tokens] + rest != whole:
                return False
    return True


def _encode_stable(tokenizer: Tokenizer, text: str) -> tuple[list[int], int, int]:
    """The ids of `text`, and the characters and tokens before its last stable boundary.

    Pre-tokenizers cut text from left to right, so only the last piece can grow. Held back with it are what
    patterns in use can still join to it: white space before it, and a word before an apostrophe.
    """
    encoding = tokenizer.encode(text, add_special_tokens=False)
    words = encoding.word_ids
    starts = [0] if words else []
    starts += [i for i, (before, word) in enumerate(pairwise(words), 1) if word != before]
    token_offsets = encoding.offsets
    offsets = [token_offsets[i][0] for i in starts]
    ends = [*offsets[1:], len(text)]
    first = len(starts) - 1
    while first > 0:
        before, piece = text[offsets[first - 1] : offsets[first]], text[offsets[first] : ends[first]]
        if not (before.isspace() or _may_join(before) or _may_join(piece) or not _starts_anew(piece)):
            break
        first -= 1
    if first <= 0:
        return encoding.ids, 0, 0
    return encoding.ids, offsets[first], starts[first]


def _may_join(piece: str) -> bool:
    return piece.lstrip().startswith(_APOSTROPHES)


def _starts_anew(piece: str) -> bool:
    """False for a mark or a Hangul vowel or final, which normalisation can merge into what stands before."""
    return bool(piece) and unicodedata.category(piece[0])[0] != "M" and not "\u1160" <= piece[0] <= "\u11ff"


def _common_length(a: str, b: str) -> int:
    if b.startswith(a):
        return len(a)
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[:middle] == b[:middle]:
            low = middle
        else:
            high = middle - 1
    return low


_HARD_TEXTS = (
    "I'll say: don't, we're; they'Ve 'tis O'Neil’s 'll''d x's",
    "a  b   c \n\n d\t\te \r\n \n f    ",
    "1234567 + 3.14159 = 1,000,000 (x2) 12ab34 -5% $9.99",
    "caf\u00e9 e\u0301a\u0327\u0301 \u65e5\u672c\u8a9e\u3001\u4e2d\u6587\u3002 \ud55c\uad6d\u1112\u1161\u11ab",
    "\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467 x\U0001f44d\U0001f3fd",
    "\u0645\u0631\u062d\u0628\u0627 \u0939\u093f\u0928\u094d\u0926\u0940",
    'def f(x):\n    return {"a": [x, -1]}  # !!!???\n\n```\ncode <|im_end|> </b>\n',
    "HelloWorld fooBAR snake_case http://a.b/c?d=e&f #tag @me A.B.C. ...---...",
)
