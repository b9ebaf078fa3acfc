"""How text comes to be in an input box: at a constant rate as in the paper, or as people type.

Typing rates are characters a minute (cpm) of the whole text: pauses and corrections are inside that time, so runs with
different habits are comparable. LiveMind (arXiv 2406.14319) types at 240.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

from bench.typing.script import Script, Writer

_CLAUSE_ENDS = ",;:"
_SENTENCE_ENDS = ".!?\n"
_PASSAGE_END = re.compile(r"(?<=[.!?])(?=\s)|(?<=\n)")
_WORD = re.compile(r"[^\W\d_]{4,}")
_KEY_ROWS = ("qwertyuiop", "asdfghjkl", "zxcvbnm")


def constant(text: str, cpm: float = 240.0) -> Script:
    """One character every `60 / cpm` seconds, in order, without a mistake."""
    gap = 60.0 / cpm
    writer = Writer()
    for index, character in enumerate(text):
        writer.now_s = index * gap
        writer.append(character)
    return Script(writer.edits)


@dataclass(frozen=True)
class Habits:
    """How a person types. Gaps between keys are log-normal with `gap_sigma`, around the rate of a burst that changes by
    `burst_sigma` from word to word. Pauses are in units of a mean gap. The chances are those of a wrong key for each
    letter, of a word that is mended once its sentence is finished, and of a passage that is pasted."""

    gap_sigma: float = 0.45
    burst_sigma: float = 0.3
    clause_pause: float = 2.0
    sentence_pause: float = 5.0
    typo: float = 0.02
    mend: float = 0.05
    paste: float = 0.05
    min_paste: int = 24


def realistic(text: str, cpm: float = 240.0, seed: int = 1, habits: Habits | None = None) -> Script:
    """A script that depends on nothing but the arguments."""
    typist = _Typist(random.Random(seed), habits or Habits())
    for passage in _PASSAGE_END.split(text):
        typist.passage(passage)
    return Script(typist.writer.edits).lasting(max(0, len(text) - 1) * 60.0 / cpm)


class _Typist:
    """Time is counted in mean gaps; the script is stretched when it is finished."""

    def __init__(self, source: random.Random, habits: Habits) -> None:
        self.writer = Writer()
        self._random = source
        self._habits = habits
        self._burst = 1.0
        self._mends: list[tuple[int, str]] = []

    def passage(self, text: str) -> None:
        if len(text) >= self._habits.min_paste and self._chance(self._habits.paste):
            self._pause(self._habits.clause_pause)
            self.writer.append(text)
            return
        begin = len(self.writer.text)
        for character in self._with_wrong_words(text, begin):
            self._key(character)
        for start, word in self._mends:
            self._pause(self._habits.clause_pause)
            self.writer.splice(start, start + len(word), word)
        self._mends.clear()

    def _with_wrong_words(self, text: str, begin: int) -> str:
        """`text` with two letters of some words swapped, which is noticed when the passage is finished."""
        for word in _WORD.finditer(text):
            if not self._chance(self._habits.mend):
                continue
            at = word.start() + self._random.randrange(1, len(word[0]) - 2)
            text = text[:at] + text[at + 1] + text[at] + text[at + 2 :]
            self._mends.append((begin + word.start(), word[0]))
        return text

    def _key(self, character: str) -> None:
        if character.isspace():
            self._burst = self._log_normal(self._habits.burst_sigma)
        elif character.isalpha() and self._chance(self._habits.typo):
            self._mistype(character)
        self._strike(character)

    def _mistype(self, character: str) -> None:
        """A wrong key, perhaps another one before it is seen, and back."""
        wrong = [_neighbour(character, self._random)]
        if self._chance(0.4):
            wrong.append(character)
        for key in wrong:
            self._strike(key)
        self._pause(1.0)
        for _ in wrong:
            self._gap()
            self.writer.backspace()

    def _strike(self, character: str) -> None:
        """The pause that thinking takes comes after the mark and its white space: before the next word."""
        before = self.writer.text.rstrip(" ")[-1:]
        if not character.isspace() and self.writer.text[-1:].isspace() and before:
            if before in _SENTENCE_ENDS:
                self._pause(self._habits.sentence_pause)
            elif before in _CLAUSE_ENDS:
                self._pause(self._habits.clause_pause)
        self._gap()
        self.writer.append(character)

    def _gap(self) -> None:
        self.writer.wait(self._burst * self._log_normal(self._habits.gap_sigma))

    def _pause(self, mean: float) -> None:
        self.writer.wait(mean * self._log_normal(0.6))

    def _log_normal(self, sigma: float) -> float:
        """With mean 1."""
        return self._random.lognormvariate(-sigma * sigma / 2, sigma) if sigma else 1.0

    def _chance(self, probability: float) -> bool:
        return self._random.random() < probability


def _neighbour(character: str, source: random.Random) -> str:
    """A key beside that of `character`."""
    for row in _KEY_ROWS:
        index = row.find(character.lower())
        if index >= 0:
            return row[max(0, min(len(row) - 1, index + source.choice((-1, 1))))]
    return source.choice("aeinst")
