"""One choice of a completion: tokens in, parts for the client out. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from engine.messages import TokenLogprobs
from realtime.chat_format import ChatFormat
from realtime.messages import CompletionPart, TokenLogprob, TopLogprob
from realtime.reasoning import ReasoningFilter
from realtime.stop_strings import StopStrings

LEAST_LOGPROB = -9999.0


class Choice:
    """`text` is the answer so far, `tokens` counts what was read for it. Stop strings are looked for in the answer
    only, not in the reasoning. `opened`: the prompt ends inside a reasoning block."""

    def __init__(self, index: int, fmt: ChatFormat, stops: Sequence[str] = (), opened: bool = False) -> None:
        self.index = index
        self.text = ""
        self.tokens = 0
        self.reasoning_tokens = 0
        self._fmt = fmt
        self._detokenizer = fmt.detokenizer()
        self._reasoning = ReasoningFilter(opened)
        self._stops = StopStrings(stops)
        self._received = 0
        # Where in the received text a token begins; its log probabilities go out with its first character.
        self._waiting: deque[tuple[int, TokenLogprob]] = deque()

    @property
    def stopped(self) -> bool:
        """Whether a stop string has ended the answer."""
        return self._stops.stopped

    def feed(self, tokens: Sequence[int], logprobs: Sequence[TokenLogprobs] = ()) -> CompletionPart:
        """Reads tokens up to the one that completes a stop string. `logprobs` are theirs, or none."""
        part = CompletionPart(index=self.index)
        for position, token in enumerate(tokens):
            if self.stopped:
                break
            self.tokens += 1
            if logprobs:
                self._waiting.append((self._received, self._logprob(token, logprobs[position])))
            was_inside = self._reasoning.is_inside
            self._read(self._detokenizer.feed([token]), part)
            self.reasoning_tokens += was_inside or self._reasoning.is_inside
        return self._settled(part)

    def finish(self, reason: str) -> CompletionPart:
        """What was held back, and why the choice ended: `reason`, unless a stop string came first."""
        part = CompletionPart(index=self.index)
        self._read(self._detokenizer.finish(), part)
        said = self._reasoning.finish()
        part.reasoning += said.reasoning
        part.text += self._stops.feed(said.answer) + self._stops.finish()
        part = self._settled(part)
        if not self.stopped:
            part.logprobs += [logprob for _, logprob in self._waiting]
        part.finish_reason = "stop" if self.stopped else reason
        return part

    def _read(self, text: str, part: CompletionPart) -> None:
        self._received += len(text)
        said = self._reasoning.feed(text)
        part.reasoning += said.reasoning
        part.text += self._stops.feed(said.answer)

    def _settled(self, part: CompletionPart) -> CompletionPart:
        """Adds the log probabilities of all tokens that have begun to come out."""
        self.text += part.text
        settled = self._received - self._reasoning.held - self._stops.held
        logprobs = []
        while self._waiting and self._waiting[0][0] < settled:
            logprobs.append(self._waiting.popleft()[1])
        part.logprobs = logprobs
        return part

    def _logprob(self, token: int, logprobs: TokenLogprobs) -> TokenLogprob:
        chosen = self._top(token, logprobs.chosen)
        top = [self._top(other, logprob) for other, logprob in logprobs.top]
        return TokenLogprob(chosen.token, chosen.logprob, chosen.bytes, top)

    def _top(self, token: int, logprob: float) -> TopLogprob:
        data = self._fmt.token_bytes(token)
        # JSON has no infinity.
        return TopLogprob(data.decode(errors="replace"), max(logprob, LEAST_LOGPROB), list(data))
