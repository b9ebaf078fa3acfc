"""Strategy `auto`: what is done with unsent text, chosen in every turn, and why. Pure.

Reading along costs nothing that the answer would not cost, so it is the least that is done with a text that fits.
Drafts are begun where they have paid lately, and notes are taken, which changes the answer, only where the session
allows it. None of that delays a first token: it is background work, and Send stops or adopts it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Literal

Chosen = Literal["off", "prefill", "draft", "notes"]
Reason = Literal["nothing_typed", "too_long", "busy", "many_sentences", "drafts_pay", "drafts_wasted", "drafts_untried"]

MIN_SENTENCES = 3
BUSY = 2
REMEMBERED = 8
TRY_EVERY = 4
# A drafted token that is used spares the user a step of waiting; a wasted one took a step that nobody waited for.
WORTH = 8


@dataclass(frozen=True)
class Choice:
    strategy: Chosen
    reason: Reason


UNDECIDED = Choice("prefill", "nothing_typed")


@dataclass(frozen=True)
class Situation:
    """`fits`: the prompt leaves room for an answer. `awaited`: how many answers somebody waits for the first word of.
    `sentences`: how many of the unsent text are complete."""

    fits: bool
    awaited: int
    sentences: int
    lossless: bool


class DraftHistory:
    """What the drafts of a session's last turns were good for."""

    def __init__(self) -> None:
        self._turns: deque[tuple[int, int]] = deque(maxlen=REMEMBERED)
        self._since_tried = 0

    def drafted(self, used: int, wasted: int) -> None:
        """A turn with drafts has ended: so many of their tokens were of use and so many were not."""
        self._turns.append((used, wasted))
        self._since_tried = 0

    def not_drafted(self) -> None:
        """A turn without drafts has ended."""
        self._since_tried += 1

    @property
    def verdict(self) -> Reason:
        """Without any turn, and now and then after bad ones, drafts are worth a try."""
        if not self._turns or self._since_tried >= TRY_EVERY:
            return "drafts_untried"
        used, wasted = (sum(tokens) for tokens in zip(*self._turns, strict=True))
        return "drafts_pay" if WORTH * used >= wasted else "drafts_wasted"


def choose(situation: Situation, drafts: DraftHistory) -> Choice:
    """What to do with the text as it is."""
    if not situation.fits:
        return Choice("off", "too_long")
    if situation.awaited >= BUSY:
        return Choice("prefill", "busy")
    if not situation.lossless and situation.sentences >= MIN_SENTENCES:
        return Choice("notes", "many_sentences")
    verdict = drafts.verdict
    return Choice("prefill" if verdict == "drafts_wasted" else "draft", verdict)
