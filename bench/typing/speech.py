"""Text as a speech recogniser shows it: in steps, of which many rewrite the words shown before.

The defaults follow 256 recorded streams of PredGen (arXiv 2506.15556): an update every 0.31 s, three in four of which
rewrite the tail.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

from bench.typing.script import Script, Writer

_WORD = re.compile(r"\s*\S+")
_MARKS = re.compile(r"[^\w\s']+\Z")
_VOWELS = "aeiou"


@dataclass(frozen=True)
class Recogniser:
    """The last words of an update are `unsure` with this chance: shown without punctuation, and each of them with
    chance `misheard` as another word."""

    update_s: float = 0.31
    update_sigma: float = 0.4
    unsure: float = 0.74
    most_unsure_words: int = 3
    misheard: float = 0.3


def recognised(text: str, cpm: float = 600.0, seed: int = 1, recogniser: Recogniser | None = None) -> Script:
    """A script that depends on nothing but the arguments; the last edit makes the text right."""
    source, ear = random.Random(seed), recogniser or Recogniser()
    words = _WORD.findall(text)
    writer = Writer()
    said, start = 0, 0.0
    while said < len(words):
        pause = ear.update_s * source.lognormvariate(-(ear.update_sigma**2) / 2, ear.update_sigma)
        heard = _spoken(words, start + pause, cpm)
        start += pause
        if heard > said:
            said = heard
            _show(writer, start, _hypothesis(words[:said], source, ear))
    _show(writer, max(start + ear.update_s, len(text) * 60.0 / cpm), text)
    return Script(writer.edits)


def _spoken(words: list[str], seconds: float, cpm: float) -> int:
    """How many words have been spoken by then."""
    characters = seconds * cpm / 60.0
    for count, word in enumerate(words):
        characters -= len(word)
        if characters < 0:
            return count
    return len(words)


def _hypothesis(words: list[str], source: random.Random, ear: Recogniser) -> str:
    if source.random() >= ear.unsure:
        return "".join(words)
    unsure = source.randint(1, ear.most_unsure_words)
    sure, tail = words[:-unsure], words[-unsure:]
    return "".join([*sure, *(_unsure(word, source, ear) for word in tail)])


def _unsure(word: str, source: random.Random, ear: Recogniser) -> str:
    plain = _MARKS.sub("", word).lower() or word
    if source.random() >= ear.misheard:
        return plain
    vowels = [index for index, letter in enumerate(plain) if letter in _VOWELS]
    if not vowels:
        return plain + "s"
    index = source.choice(vowels)
    return plain[:index] + source.choice(_VOWELS.replace(plain[index], "")) + plain[index + 1 :]


def _show(writer: Writer, at_s: float, text: str) -> None:
    """One edit: from where the new hypothesis differs to the end."""
    common = 0
    for old, new in zip(writer.text, text, strict=False):
        if old != new:
            break
        common += 1
    if writer.text != text:
        writer.now_s = at_s
        writer.splice(common, len(writer.text), text[common:])
