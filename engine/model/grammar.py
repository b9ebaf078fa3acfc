"""Constrained decoding: a grammar decides which tokens may come next (xgrammar).

Grammars are compiled beside the step loop (`PendingMatcher`), and the masks of a step are filled while the model
computes its logits (`MaskFiller`).
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
import xgrammar

from engine.messages import Grammar

_MAX_SOURCE_BYTES = 32 * 1024
_MAX_CACHED = 64
_MAX_COMPILING = 16
_COMPILERS = 2
_COMPILE_LIMIT_S = 10.0


class GrammarError(ValueError):
    """The grammar is invalid, too large, or cannot be used with this model."""


class Matcher:
    """The state of one constrained generation; advanced by what is generated."""

    def __init__(self, compiled: xgrammar.CompiledGrammar, vocab_size: int, stop_token_ids: Sequence[int]) -> None:
        self._matcher = xgrammar.GrammarMatcher(compiled, override_stop_tokens=list(stop_token_ids))
        self._stop_token_ids = stop_token_ids
        self._scratch = xgrammar.allocate_token_bitmask(1, vocab_size)

    def accept_text(self, text: str) -> None:
        """Advances by text that is in the prompt already. Raises `GrammarError` if the grammar does not allow it."""
        if text and not self._matcher.accept_string(text):
            raise GrammarError("the given text is not allowed by the grammar")

    def accept(self, token: int) -> None:
        """Advances by a generated token. Raises `GrammarError` if the grammar does not allow it."""
        if not self._matcher.accept_token(token):
            raise GrammarError(f"token {token} is not allowed by the grammar")

    def fill(self, bitmask: torch.Tensor, row: int) -> None:
        """Writes the allowed next tokens into a row of an int32 CPU bitmask (`xgrammar.allocate_token_bitmask`)."""
        self._matcher.fill_next_token_bitmask(bitmask, row)

    def allowed(self, draft: Sequence[int]) -> list[int]:
        """The part of `draft` that the grammar allows next; the state stays."""
        count = self._advance(draft)
        self._matcher.rollback(count)
        return list(draft[:count])

    def fill_draft(self, bitmask: torch.Tensor, row: int, draft: Sequence[int]) -> None:
        """`fill` for the next token and, in the rows below, for the tokens after each one of `draft`, all allowed."""
        self.fill(bitmask, row)
        for i, token in enumerate(draft, start=1):
            self.accept(token)
            self.fill(bitmask, row + i)
        self._matcher.rollback(len(draft))

    def _advance(self, draft: Sequence[int]) -> int:
        for count, token in enumerate(draft):
            if token in self._stop_token_ids or not self._matcher.accept_token(token):
                return count
        return len(draft)

    @property
    def is_finished(self) -> bool:
        """Whether the text is complete and nothing but a stop token could follow.

        A grammar such as `[0-9]+` is complete after every digit, but not finished.
        """
        if not self._matcher.is_completed():
            return False
        self._matcher.fill_next_token_bitmask(self._scratch)
        words = self._scratch[0]
        for token in self._stop_token_ids:
            word, bit = divmod(token, 32)
            # Two's complement: clearing the sign bit of an int32 needs Python's unbounded ~.
            words[word] = int(words[word]) & ~(1 << bit) if bit < 31 else int(words[word]) & 0x7FFFFFFF
        return not bool(words.any())


@dataclass(frozen=True, slots=True)
class MaskRow:
    """`matcher` decides rows `row` to `row + len(draft)` of a step's logits."""

    row: int
    matcher: Matcher
    draft: tuple[int, ...]


class MaskFiller:
    """Fills the masks of a step in a thread, so that it costs no time while the model computes."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(1, "grammar-mask")

    def start(self, rows: Sequence[MaskRow], count: int, vocab_size: int) -> Future[torch.Tensor]:
        """An int32 `[count, ceil(vocab_size / 32)]` CPU bitmask in the making; other rows allow everything."""
        return self._threads.submit(self._fill, rows, count, vocab_size)

    @staticmethod
    def _fill(rows: Sequence[MaskRow], count: int, vocab_size: int) -> torch.Tensor:
        bitmask = xgrammar.allocate_token_bitmask(count, vocab_size)
        for row in rows:
            row.matcher.fill_draft(bitmask, row.row, row.draft)
        return bitmask


class PendingMatcher:
    """A matcher whose grammar is being compiled; given up after `limit_s` seconds."""

    def __init__(self, future: Future[Matcher], limit_s: float = _COMPILE_LIMIT_S) -> None:
        self._future = future
        self._limit_s = limit_s
        self._deadline = time.monotonic() + limit_s

    @property
    def done(self) -> bool:
        return self._future.done() or time.monotonic() >= self._deadline

    def result(self) -> Matcher:
        """The matcher, once done. Raises `GrammarError`."""
        if not self._future.done():
            # One that still waits for its turn is not begun any more.
            self._future.cancel()
            raise GrammarError(f"the grammar was not compiled within {self._limit_s:g} s")
        return self._future.result()


class TooManyGrammars(Exception):
    """More grammars are being compiled than may wait."""


class GrammarCompiler:
    """Compiles grammars for one tokenizer; keeps the last used."""

    def __init__(self, tokenizer_info: xgrammar.TokenizerInfo, threads: int) -> None:
        self._compiler = xgrammar.GrammarCompiler(tokenizer_info, max_threads=threads, cache_enabled=False)
        self._vocab_size: int = tokenizer_info.vocab_size
        self._default_stops: list[int] = list(tokenizer_info.stop_token_ids)
        self._compiled: OrderedDict[tuple[str, str], xgrammar.CompiledGrammar] = OrderedDict()
        self._lock = threading.Lock()
        self._turns = threading.Semaphore(_COMPILERS)
        self._compiling: list[Future[Matcher]] = []

    @classmethod
    def from_folder(cls, folder: Path, vocab_size: int, threads: int) -> GrammarCompiler | None:
        """For the tokenizer in a model folder; None when there is none."""
        if not (folder / "tokenizer_config.json").is_file():
            return None
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(folder)
        return cls(xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=vocab_size), threads)

    def start(self, grammar: Grammar, stop_token_ids: Sequence[int]) -> Matcher | PendingMatcher:
        """A matcher if the grammar is known, else one that is compiled in a thread. Raises `TooManyGrammars`, and
        `GrammarError` if the grammar is known or too large."""
        if (grammar.kind, grammar.source) in self._compiled:
            return self.matcher(grammar, stop_token_ids)
        self._compiling = [future for future in self._compiling if not future.done()]
        if len(self._compiling) >= _MAX_COMPILING:
            raise TooManyGrammars(f"{_MAX_COMPILING} grammars are being compiled")
        future: Future[Matcher] = Future()
        # A daemon: nothing interrupts xgrammar, and a grammar that takes minutes must not hold up the process's end.
        threading.Thread(target=self._run, args=(future, grammar, stop_token_ids), daemon=True).start()
        self._compiling.append(future)
        return PendingMatcher(future)

    def _run(self, future: Future[Matcher], grammar: Grammar, stop_token_ids: Sequence[int]) -> None:
        with self._turns:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(self.matcher(grammar, stop_token_ids))
            except Exception as error:
                future.set_exception(error)

    def matcher(self, grammar: Grammar, stop_token_ids: Sequence[int]) -> Matcher:
        """A matcher at its start. Without `stop_token_ids` the tokenizer's own are used. Raises `GrammarError`."""
        matcher = Matcher(self._compile(grammar), self._vocab_size, self.stops(stop_token_ids))
        matcher.accept_text(grammar.given)
        return matcher

    def stops(self, stop_token_ids: Sequence[int]) -> list[int]:
        """The stop tokens a constrained generation ends with."""
        return list(stop_token_ids) or self._default_stops

    def _compile(self, grammar: Grammar) -> xgrammar.CompiledGrammar:
        key = (grammar.kind, grammar.source)
        with self._lock:
            compiled = self._compiled.get(key)
            if compiled is not None:
                self._compiled.move_to_end(key)
                return compiled
        compiled = self._compile_new(grammar)
        with self._lock:
            self._compiled[key] = compiled
            if len(self._compiled) > _MAX_CACHED:
                self._compiled.popitem(last=False)
        return compiled

    def _compile_new(self, grammar: Grammar) -> xgrammar.CompiledGrammar:
        if len(grammar.source.encode()) > _MAX_SOURCE_BYTES:
            raise GrammarError(f"the grammar is larger than {_MAX_SOURCE_BYTES} bytes")
        try:
            if grammar.kind == "regex":
                return self._compiler.compile_regex(grammar.source)
            return self._compiler.compile_json_schema(grammar.source, any_whitespace=False)
        except (RuntimeError, ValueError, TypeError) as error:
            raise GrammarError(f"invalid {grammar.kind}: {error}") from error
