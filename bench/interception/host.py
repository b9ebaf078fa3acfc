"""The host of a workload: sends what a session host would send, and takes note of when what came.

It knows no clock and no engine: the simulator and the real replay give it theirs.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Sequence

from bench.interception.figures import Outcome
from bench.interception.workload import Request
from engine import messages as m

Texts = Callable[[int, int], list[int]]
"""The tokens to append for a request at a turn, by index."""


class RequestFailed(Exception):
    """The engine refused a request or did not do what it was told."""


class Host:
    """Plays `requests`; a request is a context of the same number. Times are seconds since the start."""

    def __init__(self, requests: Sequence[Request], texts: Texts, send: Callable[[m.Command], None]) -> None:
        self.outcomes = [Outcome(request) for request in requests]
        self._texts = texts
        self._send = send
        self._turns: dict[int, int] = {}
        self._generations = itertools.count(1)
        self._due = [(request.arrival_s, index) for index, request in enumerate(requests)]
        heapq.heapify(self._due)

    @property
    def next_s(self) -> float | None:
        """When something is due: an arrival, or the return of a tool."""
        return self._due[0][0] if self._due else None

    @property
    def is_done(self) -> bool:
        """Whether all requests are completed."""
        return not self._due and not self._turns

    def deliver(self, now: float) -> None:
        """Sends what is due."""
        while self._due and self._due[0][0] <= now:
            _, index = heapq.heappop(self._due)
            if index in self._turns:
                self._resume(index)
            else:
                self._arrive(index)

    def take(self, item: m.Item, now: float) -> None:
        """Goes on from what the engine says. Raises `RequestFailed`."""
        match item:
            case m.Tokens(context=index):
                outcome = self.outcomes[index]
                if outcome.first_token_s is None:
                    outcome.first_token_s = now - outcome.request.arrival_s
            case m.Finished(context=index, reason=reason, output_tokens=tokens):
                turn = self.outcomes[index].request.turns[self._turns[index]]
                if (reason, tokens) != ("length", turn.generate):
                    raise RequestFailed(f"request {index}: {tokens} of {turn.generate} tokens, then {reason}")
                self._end_turn(index, now)
            case m.Failed(context=index, message=message):
                raise RequestFailed(f"request {index}: {message}")

    def _arrive(self, index: int) -> None:
        self._turns[index] = 0
        self._send(m.Open(index, "foreground"))
        self._send(m.Append(index, self._texts(index, 0)))
        self._send(m.Generate(index, next(self._generations), self._params(index)))

    def _resume(self, index: int) -> None:
        self._turns[index] += 1
        tokens = self._texts(index, self._turns[index])
        self._send(m.Resume(index, tokens, next(self._generations), self._params(index)))

    def _end_turn(self, index: int, now: float) -> None:
        outcome, number = self.outcomes[index], self._turns[index]
        turns = outcome.request.turns
        if number + 1 == len(turns):
            outcome.end_s = now - outcome.request.arrival_s
            del self._turns[index]
            self._send(m.Close(index))
        else:
            tool, seconds = turns[number].tool, turns[number].tool_s
            self._send(m.Hold(index, "tool", tool=tool, actual_s=seconds))
            heapq.heappush(self._due, (now + seconds, index))

    def _params(self, index: int) -> m.GenerateParams:
        return m.GenerateParams(self.outcomes[index].request.turns[self._turns[index]].generate, speculate=False)
