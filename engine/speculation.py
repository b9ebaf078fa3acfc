"""Guessing what a generation says next, to be verified in one pass: lossless speculative decoding.

Two sources of guesses. A *draft*, an answer made from an earlier revision of the text, is proposed from its beginning
as long as it comes true (PredGen, arXiv 2506.15556). *Prompt lookup* proposes what followed the last tokens where they
stood before, in the draft or in the context. The step computes the guesses behind the last token and samples in each
of their places with the random number of that position; those equal to what was sampled are kept (`sampler.verify`),
and the first sampled token that differs is kept in their stead, so the text is that of plain decoding.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.repetition import LONGEST, Repetition

_FIRST_LENGTH = 4
_LONGEST = 16
_LONGEST_DRAFT = 256
_LONGEST_PAUSE = 64


class Proposer:
    """The guesses of one generation; a function of its tokens alone, so a repeated run takes the same steps."""

    def __init__(self, prompt: Sequence[int], draft: Sequence[int] = ()) -> None:
        self._start = len(prompt)
        self._draft = list(draft)
        self._came_true = 0
        self._follows_draft = bool(draft)
        self._in_draft = Repetition(self._draft)
        self._in_context: Repetition | None = None
        self._length = _FIRST_LENGTH
        self._failures = 0
        self._pause_until = 0

    def propose(self, tokens: Sequence[int]) -> list[int]:
        """What may follow `tokens` (the prompt and all that was generated); empty when there is nothing to go by."""
        self._check_draft(tokens)
        if self._follows_draft:
            return self._draft[self._came_true : self._came_true + _LONGEST_DRAFT]
        if self._in_context is None:
            self._in_context = Repetition(tokens)
        self._in_context.grow(tokens)
        if len(tokens) < self._pause_until:
            return []
        tail = tokens[-LONGEST:]
        if (place := self._in_draft.find(self._draft, tail)) is not None:
            return self._draft[place : place + self._length]
        if (place := self._in_context.find(tokens, tail)) is not None:
            return self._continue(tokens, place)
        return []

    def _continue(self, tokens: Sequence[int], place: int) -> list[int]:
        """What followed before; where that runs into the end of the text, the text repeats itself and may go on so."""
        guess = list(tokens[place : place + self._length])
        period = len(guess)
        guess += [guess[i % period] for i in range(period, self._length)]
        return guess

    def observe(self, length: int, drafted: int, accepted: int) -> None:
        """Of `drafted` proposed tokens `accepted` came true and the context has `length` tokens now: good guesses get
        longer, useless ones rarer."""
        if not drafted or self._follows_draft:
            return
        if accepted == drafted:
            self._length = min(2 * self._length, _LONGEST)
        else:
            self._length = max(accepted + 1, 2)
        self._failures = 0 if accepted else self._failures + 1
        if self._failures:
            self._pause_until = length + min(2**self._failures, _LONGEST_PAUSE)

    def _check_draft(self, tokens: Sequence[int]) -> None:
        while self._follows_draft and self._start + self._came_true < len(tokens):
            told = self._came_true < len(self._draft)
            if told and self._draft[self._came_true] == tokens[self._start + self._came_true]:
                self._came_true += 1
            else:
                self._follows_draft = False
