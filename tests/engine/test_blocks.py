"""Block accounting under every order of appends, truncates, forks and discards."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from engine.context import Context
from engine.kv.blocks import BlockPool, OutOfBlocks

BLOCKS = 24
SIZE = 4


class Accounting(RuleBasedStateMachine):
    """Contexts write owner marks into a model of the pool; nobody may ever see another's marks."""

    contexts = Bundle("contexts")

    @initialize()
    def start(self) -> None:
        self.pool = BlockPool(BLOCKS, SIZE)
        self.slots: list[int | None] = [None] * (BLOCKS * SIZE)
        self.alive: list[Context] = []
        self.mark = 0

    @rule(target=contexts)
    def open(self) -> Context:
        context = Context(len(self.alive), self.pool, "foreground")
        self.alive.append(context)
        return context

    @rule(context=contexts, count=st.integers(1, 14))
    def append_and_compute(self, context: Context, count: int) -> None:
        marks = list(range(self.mark, self.mark + count))
        self.mark += count
        needed, free = context.blocks_needed(count), self.pool.free_count
        before = (list(context.blocks), context.kv_length)
        if context.kv_length < len(context.tokens):
            return
        try:
            copies = context.reserve(count)
        except OutOfBlocks:
            assert needed > free
            assert (context.blocks, context.kv_length) == before
            return
        assert self.pool.free_count == free - needed
        for source, target in copies:
            self.slots[target * SIZE : (target + 1) * SIZE] = self.slots[source * SIZE : (source + 1) * SIZE]
        for i, mark in enumerate(marks, start=context.kv_length):
            self.slots[context.blocks[i // SIZE] * SIZE + i % SIZE] = mark
        context.tokens.extend(marks)
        context.kv_length += count

    @rule(context=contexts, share=st.floats(0, 1))
    def truncate(self, context: Context, share: float) -> None:
        context.truncate(int(len(context.tokens) * share))

    @rule(context=contexts)
    def recompute_last(self, context: Context) -> None:
        if context.kv_length and context.kv_length == len(context.tokens):
            last = context.tokens[-1]
            context.shrink_kv(context.kv_length - 1)
            if context.blocks_needed(1) <= self.pool.free_count:
                del context.tokens[-1]
                self.mark, kept = last, self.mark
                self.append_and_compute(context, 1)
                self.mark = kept

    @rule(target=contexts, context=contexts)
    def fork(self, context: Context) -> Context:
        child = context.fork(len(self.alive), "background")
        self.alive.append(child)
        return child

    @rule(context=contexts)
    def discard(self, context: Context) -> None:
        context.drop_kv()
        del context.tokens[:]

    @rule(context=consumes(contexts))
    def close(self, context: Context) -> None:
        context.drop_kv()
        self.alive.remove(context)

    @invariant()
    def every_block_is_accounted_for(self) -> None:
        self.pool.check_integrity([context.blocks for context in self.alive])

    @invariant()
    def every_context_sees_its_own_tokens(self) -> None:
        for context in self.alive:
            seen = [self.slots[context.blocks[i // SIZE] * SIZE + i % SIZE] for i in range(context.kv_length)]
            assert seen == context.tokens[: context.kv_length]


Accounting.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestAccounting = Accounting.TestCase


def test_a_growing_context_stays_one_run_beside_others() -> None:
    pool = BlockPool(64, SIZE)
    first, second = pool.allocate(2), pool.allocate(2)
    for _ in range(10):
        first += pool.allocate(1, after=first[-1])
        second += pool.allocate(1, after=second[-1])
    for blocks in (first, second):
        assert blocks == list(range(blocks[0], blocks[0] + 12))


def test_a_new_run_is_placed_where_all_of_it_fits() -> None:
    pool = BlockPool(16, SIZE)
    pool.allocate(4)
    blocks = pool.allocate(11)
    assert blocks == list(range(blocks[0], blocks[0] + 11))


def test_too_many_blocks_are_refused_whole() -> None:
    pool = BlockPool(4, SIZE)
    held = pool.allocate(2)
    with pytest.raises(OutOfBlocks):
        pool.allocate(3)
    pool.check_integrity([held])


def test_a_leak_is_found() -> None:
    pool = BlockPool(4, SIZE)
    pool.allocate(1)
    with pytest.raises(AssertionError):
        pool.check_integrity([])


def test_releasing_a_free_block_is_an_error() -> None:
    with pytest.raises(AssertionError):
        BlockPool(4, SIZE).release([0])
