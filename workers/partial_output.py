"""The output of a running tool, sent to the waiting node piece by piece: not too often and not too much of it."""

from __future__ import annotations

import time
from collections.abc import Callable

PERIOD_S = 0.1
MAX_CHARACTERS = 16 * 1024


class PartialOutput:
    """`post(start, text)` sends a piece that begins `start` characters into the output."""

    def __init__(self, post: Callable[[int, str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._post = post
        self._clock = clock
        self._sent = 0
        self._unsent = ""
        self._sent_at = float("-inf")

    def add(self, text: str) -> None:
        """The next piece. What comes within `PERIOD_S` goes out with a later piece, what is beyond `MAX_CHARACTERS` not
        at all: the result, which is sent in any case, has everything."""
        self._unsent += text[: MAX_CHARACTERS - self._sent - len(self._unsent)]
        now = self._clock()
        if self._unsent and now - self._sent_at >= PERIOD_S:
            text, self._unsent, self._sent_at = self._unsent, "", now
            self._post(self._sent, text)
            self._sent += len(text)
