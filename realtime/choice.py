"""One choice of a completion: tokens in, parts for the client out. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from engine.messages import TokenLogprobs
from realtime.call_filter import CallFilter
from realtime.chat_format import ChatFormat
from realtime.messages import CompletionPart, TokenLogprob, TopLogprob
from realtime.reasoning import ReasoningFilter
from realtime.stop_strings import StopStrings

LEAST_LOGPROB = -9999.0


class Choice:
    """`text` is the answer so far, `tokens` counts what was read for it. Stop strings are looked for in the answer
    only, not in the reasoning and not in tool calls. `opened`: the prompt ends inside a reasoning block. Without
    `calls` there are no tools, and what looks like a call is text."""

    def __init__(
        self,
        index: int,
        fmt: ChatFormat,
        stops: Sequence[str] = (),
        opened: bool = False,
        calls: CallFilter | None = None,
    ) -> None:
        self.index = index
        self.text = ""
        self.tokens = 0
        self.reasoning_tokens = 0
        self._fmt = fmt
        self._detokenizer = fmt.detokenizer()
        self._reasoning = ReasoningFilter(opened)
        self._calls = calls
        self._stops = StopStrings(stops)
        self._received = 0
        # Where in the received text a token begins; its log probabilities go out with its first character.
        self._waiting: deque[tuple[int, TokenLogprob]] = deque()

    @property
    def stopped(self) -> bool:
        """Whether a stop string has ended the answer."""
        return self._stops.stopped

    @property
    def is_over(self) -> bool:
        """Whether no more tokens are wanted."""
        return self.stopped or (self._calls is not None and self._calls.is_over)

    @property
    def _has_called(self) -> bool:
        return self._calls is not None and bool(self._calls.calls)

    def feed(self, tokens: Sequence[int], logprobs: Sequence[TokenLogprobs] = ()) -> CompletionPart:
        """Reads tokens up to the one after which it is over. `logprobs` are theirs, or none."""
        part = CompletionPart(index=self.index)
        for position, token in enumerate(tokens):
            if self.is_over:
                break
            self.tokens += 1
            if logprobs:
                self._waiting.append((self._received, self._logprob(token, logprobs[position])))
            was_inside = self._reasoning.is_inside
            self._read(self._detokenizer.feed([token]), part)
            self.reasoning_tokens += was_inside or self._reasoning.is_inside
        self.text += part.text
        return part

    def finish(self, reason: str) -> CompletionPart:
        """What was held back, and why the choice ended: `reason`, unless a call or a stop string did."""
        part = CompletionPart(index=self.index)
        self._read(self._detokenizer.finish(), part)
        said = self._reasoning.finish()
        part.reasoning += said.reasoning
        self._answer(said.answer, part)
        if self._calls is not None:
            part.text += self._stops.feed(self._calls.finish())
        part.text += self._stops.finish()
        self.text += part.text
        if not self.stopped and not self._has_called:
            part.logprobs += [logprob for _, logprob in self._waiting]
        part.finish_reason = "stop" if self.is_over else reason
        if part.finish_reason == "stop" and self._has_called:
            part.finish_reason = "tool_calls"
        return part

    def _read(self, text: str, part: CompletionPart) -> None:
        self._received += len(text)
        said = self._reasoning.feed(text)
        part.reasoning += said.reasoning
        self._answer(said.answer, part)

    def _answer(self, text: str, part: CompletionPart) -> None:
        if self._calls is not None:
            known = len(self._calls.calls)
            text = self._calls.feed(text)
            part.calls += self._calls.calls[known:]
        part.text += self._stops.feed(text)
        settled = self._settled()
        # What calls are made of, and what stands between them, is no content.
        part.logprobs += [] if self._has_called else settled

    def _settled(self) -> list[TokenLogprob]:
        """The log probabilities of all tokens that have begun to come out."""
        held = self._reasoning.held + self._stops.held + (self._calls.held if self._calls is not None else 0)
        settled = []
        while self._waiting and self._waiting[0][0] < self._received - held:
            settled.append(self._waiting.popleft()[1])
        return settled

    def _logprob(self, token: int, logprobs: TokenLogprobs) -> TokenLogprob:
        chosen = self._top(token, logprobs.chosen)
        top = [self._top(other, logprob) for other, logprob in logprobs.top]
        return TokenLogprob(chosen.token, chosen.logprob, chosen.bytes, top)

    def _top(self, token: int, logprob: float) -> TopLogprob:
        data = self._fmt.token_bytes(token)
        # JSON has no infinity.
        return TopLogprob(data.decode(errors="replace"), max(logprob, LEAST_LOGPROB), list(data))
