"""Random commands for the engine core, most of them legal, so that they reach states that are worth reaching."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from engine import messages as m

CALL = "call"
ILLEGAL = 0.1
"""Share of the commands that go to any context, whatever its state."""
DISCONNECT_EVERY = 250
"""Commands, on average."""
DELICATE = 0.2
"""How often a delicate context is aborted."""


@dataclass
class Seen:
    """What is known of an open context. `answer` is what it generated last, after `prompt` tokens."""

    filled: bool = False
    held: bool = False
    generating: bool = False
    prompt: int = 0
    answer: list[int] = field(default_factory=list)


class RandomVerbs:
    """Commands for contexts 0 to `contexts` - 1, of which `most` may be open, of `models` models of `vocab` tokens."""

    def __init__(self, seed: int, *, contexts: int, most: int, models: int, vocab: int) -> None:
        self._rng = random.Random(seed)
        self._contexts = range(contexts)
        self._most = most
        self._models = models
        self._vocab = vocab
        self._generations = 0
        self._seen: dict[int, Seen] = {}

    def steps(self) -> int:
        """How many steps to run before the next command."""
        return self._rng.choice([0, 0, 1, 1, 2, 4])

    def is_cut_off(self) -> bool:
        """Whether the connection is lost before the next command: all contexts are gone then."""
        if self._rng.randrange(DISCONNECT_EVERY):
            return False
        self._seen.clear()
        return True

    def next(self, delicate: Sequence[int] = ()) -> m.Command:
        """The next command; what it does is noted as if it were obeyed. `delicate` contexts are often aborted."""
        is_abort = bool(delicate) and self._rng.random() < DELICATE
        command = self._abort(self._rng.choice(delicate)) if is_abort else self._choose()
        self._note(command)
        return command

    def saw(self, items: list[m.Item]) -> None:
        """What became of the commands."""
        for item in items:
            seen = self._seen.get(item.context)
            if seen is None:
                continue
            if isinstance(item, m.Tokens):
                seen.answer += item.tokens
            elif isinstance(item, m.Finished):
                seen.generating, seen.prompt = False, item.prompt_tokens
            elif isinstance(item, m.Failed):
                seen.generating = False

    def _note(self, command: m.Command) -> None:
        if isinstance(command, m.Open):
            if command.model < self._models:
                self._add(command.context, Seen())
            return
        seen = self._seen.get(command.context)
        if seen is None:
            return
        match command:
            case m.Append(tokens=tokens):
                seen.filled = seen.filled or bool(tokens)
            case m.Generate():
                seen.generating, seen.answer = True, []
            case m.Cancel():
                seen.generating = False
            case m.Truncate(length=length):
                seen.generating, seen.filled = False, length > 0
            case m.Fork(child=child):
                self._add(child, Seen(seen.filled, False, False, seen.prompt, list(seen.answer)))
            case m.Hold():
                seen.held, seen.generating = True, False
            case m.Resume(params=params):
                seen.held, seen.generating = False, params is not None
            case m.Close():
                del self._seen[command.context]

    def _add(self, context: int, seen: Seen) -> None:
        if context not in self._seen and len(self._seen) < self._most:
            self._seen[context] = seen

    def _choose(self) -> m.Command:
        rng, kind = self._rng, self._rng.randrange(100)
        if not self._seen or (kind < 12 and len(self._seen) < self._most):
            return self._open()
        if kind < 34:
            return m.Append(self._one(lambda seen: not seen.generating), self._tokens(12))
        if kind < 60:
            context = self._one(lambda seen: seen.filled and not seen.held and not seen.generating)
            return m.Generate(context, self._generation(), self._params(context))
        if kind < 66:
            return m.Cancel(self._one(lambda seen: seen.generating))
        if kind < 74:
            context = self._one(lambda seen: seen.filled)
            return m.Truncate(context, self._length(context))
        if kind < 80:
            child = self._any([context for context in self._contexts if context not in self._seen])
            return m.Fork(self._one(lambda seen: True), child, self._priority())
        if kind < 84:
            return m.Hold(self._one(lambda seen: not seen.held), rng.choice(["tool", "idle"]), rng.random(), CALL)
        if kind < 86:
            state: m.ToolState = rng.choice(["started", "progress", "finished", "failed", "cancelled"])
            return m.ToolEvent(self._one(lambda seen: seen.held), rng.choice([CALL, "?"]), state, rng.random())
        if kind < 90:
            context = self._one(lambda seen: seen.held)
            params = self._params(context) if rng.random() < 0.7 else None
            return m.Resume(context, self._tokens(8), self._generation(), params)
        if kind < 93:
            return m.SetPriority(self._one(lambda seen: True), self._priority())
        return m.Close(self._one(lambda seen: True))

    def _abort(self, context: int) -> m.Command:
        commands: list[m.Command] = [m.Cancel(context), m.Truncate(context, self._length(context)), m.Close(context)]
        return self._rng.choice(commands)

    def _open(self) -> m.Open:
        rng = self._rng
        context = self._any([context for context in self._contexts if context not in self._seen])
        model = self._models if rng.random() < ILLEGAL else rng.randrange(self._models)
        return m.Open(context, self._priority(), model, rng.randrange(3))

    def _one(self, fits: Callable[[Seen], bool]) -> int:
        return self._any([context for context, seen in self._seen.items() if fits(seen)])

    def _any(self, contexts: list[int]) -> int:
        """One of them; sometimes, and if there are none, any."""
        return self._rng.choice(contexts if contexts and self._rng.random() > ILLEGAL else self._contexts)

    def _priority(self) -> m.Priority:
        return self._rng.choice(["foreground", "background"])

    def _generation(self) -> int:
        self._generations += 1
        return self._generations

    def _tokens(self, most: int) -> list[int]:
        """From few, so that texts begin alike and repeat themselves; sometimes none of the model's."""
        if self._rng.random() < 0.01:
            return [self._rng.choice([-1, self._vocab, 1 << 40])]
        return [self._rng.choice([5, 6, 7]) for _ in range(self._rng.randrange(most))]

    def _length(self, context: int) -> int:
        """Often just before the last answer, which can be the draft of the next then."""
        seen = self._seen.get(context)
        if seen is not None and seen.answer and self._rng.random() < 0.6:
            return seen.prompt
        return self._rng.choice([0, 1, 3, 4, 5, 8, 13, 30, 99])

    def _draft(self, context: int) -> list[int]:
        seen = self._seen.get(context)
        if seen is not None and seen.answer and self._rng.random() < 0.7:
            return list(seen.answer)
        return self._tokens(20) if self._rng.random() < 0.2 else []

    def _params(self, context: int) -> m.GenerateParams:
        rng = self._rng
        sampling = m.Sampling(
            temperature=float("nan") if rng.random() < 0.01 else rng.choice([0.0, 0.0, 0.8, 1.0]),
            top_p=rng.choice([1.0, 0.9]),
            seed=rng.randrange(100),
            repetition_penalty=rng.choice([1.0, 1.0, 1.2]),
            frequency_penalty=rng.choice([0.0, 0.0, 0.5]),
        )
        return m.GenerateParams(
            max_tokens=rng.randrange(30),
            sampling=sampling,
            stop_token_ids=rng.choice([[], [rng.randrange(self._vocab)]]),
            top_logprobs=rng.choice([None, None, 2]),
            draft=self._draft(context),
            speculate=rng.random() < 0.7,
        )
