"""A context's KV under every order of appends, steps, rewinds, forks, matches and discards."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from engine.context import Context
from engine.generation import Generation
from engine.kv.blocks import BlockPool, OutOfBlocks
from engine.kv.prefix import ROOT
from engine.messages import GenerateParams
from engine.model.grammar import PendingMatcher

BLOCKS = 16
SIZE = 4
Text = tuple[int, ...]


class Memory:
    """A pool with what stands in it: every slot names the text that its KV was computed for, itself included."""

    def __init__(self, blocks: int = BLOCKS) -> None:
        self.pool = BlockPool(blocks, SIZE)
        self.slots: list[Text] = [()] * (blocks * SIZE)
        self.contexts: list[Context] = []

    def open(self, tokens: Sequence[int] = ()) -> Context:
        context = Context(len(self.contexts), self.pool, "foreground")
        self.contexts.append(context)
        context.append(tokens)
        return context

    def computed(self, tokens: Sequence[int]) -> Context:
        context = self.open(tokens)
        self.step([context])
        return context

    def fork(self, context: Context) -> Context:
        child = context.fork(len(self.contexts), "background")
        self.contexts.append(child)
        return child

    def close(self, context: Context) -> None:
        context.drop_kv()
        self.contexts.remove(context)

    def edit(self, context: Context, length: int, tokens: Sequence[int]) -> None:
        context.truncate(length)
        context.append(tokens)

    def step(self, contexts: Sequence[Context], count: int = 99, accepted: int = 0, sealed: bool = True) -> int:
        """Reserves for all, copies, then computes up to `count` tokens of each, and its proposal behind the last of
        them, of which `accepted` tokens come true. Returns how many blocks were copied."""
        work: list[tuple[Context, list[int]]] = []
        copies: list[tuple[int, int]] = []
        for context in contexts:
            tokens = context.tokens[context.kv_length :][: min(count, context.pending)]
            generation = context.generation
            if generation is not None and tokens and len(tokens) == len(context.tokens) - context.kv_length:
                tokens += generation.proposal
            if tokens and self._reserve(context, len(tokens), copies):
                work.append((context, tokens))
        for source, target in copies:
            self.slots[target * SIZE : (target + 1) * SIZE] = self.slots[source * SIZE : (source + 1) * SIZE]
        for context, tokens in work:
            self._write(context, tokens)
            self._commit(context, tokens, accepted)
            if sealed:
                context.seal()
        return len(copies)

    def _reserve(self, context: Context, count: int, copies: list[tuple[int, int]]) -> bool:
        needed, free = context.blocks_needed(count), self.pool.free_count
        before = (list(context.blocks), context.kv_length)
        try:
            copies += context.reserve(count)
        except OutOfBlocks:
            assert needed > free
            assert (context.blocks, context.kv_length) == before
            return False
        # What was copied may have become cached, which is free as well.
        assert free - needed <= self.pool.free_count <= free - needed + 1
        return True

    def _write(self, context: Context, tokens: list[int]) -> None:
        text = context.tokens[: context.kv_length] + tokens
        for i in range(context.kv_length, len(text)):
            block = context.blocks[i // SIZE]
            assert self.pool.is_writable(block)
            self.slots[block * SIZE + i % SIZE] = tuple(text[: i + 1])

    def _commit(self, context: Context, tokens: list[int], accepted: int) -> None:
        known = len(context.tokens) - context.kv_length
        drafted = tokens[known:]
        accepted = min(accepted, len(drafted))
        context.tokens += drafted[:accepted]
        context.kv_length += min(known, len(tokens)) + accepted
        generation = context.generation
        if generation is None:
            context.wants_prefill = context.pending > 0
        elif context.kv_length == len(context.tokens):
            context.tokens.append(drafted[accepted] ^ 1 if accepted < len(drafted) else 0)
            generation.output_tokens += 1
            generation.proposal = []

    def check(self) -> None:
        self.pool.check_integrity([context.blocks for context in self.contexts])
        for context in self.contexts:
            context.check_integrity()
            seen = [self.slots[context.blocks[i // SIZE] * SIZE + i % SIZE] for i in range(context.kv_length)]
            assert seen == [tuple(context.tokens[: i + 1]) for i in range(context.kv_length)]

    def cached_texts(self) -> list[Text]:
        """All texts that keyed blocks end, by walking the index."""
        texts: dict[int, Text] = {ROOT: ()}
        keys = {self.pool.prefix.uid(block): self.pool.prefix.key(block) for block in range(self.pool.count)}
        for uid in sorted(uid for uid in keys if uid):
            key = keys[uid]
            assert key is not None
            texts[uid] = texts[key[0]] + key[1]
        return list(texts.values())


def generation(context: Context, proposal: Sequence[int] = (), ready: bool = True) -> Generation:
    """Starts to generate in `context`."""
    length = len(context.tokens)
    context.generation = Generation(1, GenerateParams(99), 99, frozenset(), length, 0, 0.0)
    context.generation.compiling = None if ready else PendingMatcher(Future())
    context.generation.proposal = list(proposal)
    context.wants_prefill = False
    context.shrink_kv(length - 1)
    return context.generation


def common(first: Sequence[int], second: Sequence[int]) -> int:
    pairs = zip(first, second, strict=False)
    return next((i for i, (one, other) in enumerate(pairs) if one != other), min(len(first), len(second)))


# Few different tokens, so that texts meet often.
texts = st.lists(st.integers(0, 1), min_size=1, max_size=11)


class Accounting(RuleBasedStateMachine):
    """Whatever is done, a context's blocks hold its own text and every block is accounted for."""

    contexts = Bundle("contexts")

    @initialize()
    def start(self) -> None:
        self.memory = Memory()

    @rule(target=contexts, tokens=texts)
    def open(self, tokens: list[int]) -> Context:
        return self.memory.open(tokens)

    @rule(context=contexts, tokens=texts)
    def append(self, context: Context, tokens: list[int]) -> None:
        if context.generation is None:
            context.append(tokens)

    @rule(context=contexts, proposal=st.lists(st.integers(0, 1), max_size=6), ready=st.booleans())
    def generate(self, context: Context, proposal: list[int], ready: bool) -> None:
        if context.tokens and context.generation is None:
            generation(context, proposal, ready)
        elif context.generation is not None:
            context.generation.proposal = proposal
            context.generation.compiling = None

    @rule(context=contexts)
    def cancel(self, context: Context) -> None:
        context.generation, context.wants_prefill = None, False

    @rule(
        picked=st.lists(contexts, min_size=1, max_size=3, unique_by=id),
        count=st.integers(1, 20),
        accepted=st.integers(0, 6),
        sealed=st.booleans(),
    )
    def step(self, picked: list[Context], count: int, accepted: int, sealed: bool) -> None:
        self.memory.step(picked, count, accepted, sealed)

    @rule(context=contexts)
    def match(self, context: Context) -> None:
        limit = len(context.tokens) - (context.generation is not None)
        context.seal()
        best = max(common(text, context.tokens[:limit]) for text in self.memory.cached_texts())
        before = context.kv_length
        gained = context.match_prefix()
        assert context.kv_length == before + gained == max(before, best)

    @rule(context=contexts)
    def seal(self, context: Context) -> None:
        context.seal()

    @rule(context=contexts, share=st.floats(0, 1))
    def truncate(self, context: Context, share: float) -> None:
        context.generation = None
        context.truncate(int(len(context.tokens) * share))

    @rule(context=contexts)
    def trim(self, context: Context) -> None:
        context.trim()
        assert len(context.blocks) == -(-context.kv_length // SIZE)

    @rule(target=contexts, context=contexts)
    def fork(self, context: Context) -> Context:
        return self.memory.fork(context)

    @rule(context=contexts, spoiled=st.booleans())
    def drop(self, context: Context, spoiled: bool) -> None:
        lost = set(context.blocks)
        context.drop_kv(spoiled=spoiled)
        assert not context.blocks
        if spoiled:
            held = {block for other in self.memory.contexts for block in other.blocks}
            assert not any(self.memory.pool.prefix.uid(block) for block in lost - held)

    @rule(context=consumes(contexts))
    def close(self, context: Context) -> None:
        self.memory.close(context)

    @invariant()
    def everything_is_right(self) -> None:
        self.memory.check()

    def teardown(self) -> None:
        for context in list(self.memory.contexts):
            self.memory.close(context)
        self.memory.check()
        assert self.memory.pool.free_count == BLOCKS


Accounting.TestCase.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
TestAccounting = Accounting.TestCase


# Sharing


def test_a_second_context_takes_over_what_the_first_computed() -> None:
    memory = Memory()
    first = memory.computed(range(10))
    second = memory.open(range(10))
    assert second.match_prefix() == 8
    assert second.blocks == first.blocks[:2]
    memory.check()


def test_kv_outlives_its_context() -> None:
    memory = Memory()
    memory.close(memory.computed(range(12)))
    assert memory.open(range(12)).match_prefix() == 12
    memory.check()


def test_an_edit_across_a_block_border_does_not_reach_those_who_have_the_old_text() -> None:
    """vLLM #49449: a rewritten block kept its key, and the next request with the old text got the new one's KV."""
    memory = Memory()
    old, new = [1] * 8 + [2, 3, 4, 5] + [6] * 3, [1] * 6 + [9] * 9
    writer = memory.computed(old)
    memory.edit(writer, 6, new[6:])
    memory.step([writer])
    reader = memory.open(old)
    assert reader.match_prefix() == 12
    memory.step([reader])
    memory.check()
    assert (reader.tokens, writer.tokens) == (old, new)


def test_a_prompt_that_is_all_cached_leaves_one_token_to_compute() -> None:
    memory = Memory()
    memory.close(memory.computed(range(8)))
    context = memory.open(range(8))
    generation(context)
    assert context.match_prefix() == 7
    assert context.pending == 1
    assert memory.step([context]) == 1
    memory.check()


def test_a_match_ends_at_the_token_that_differs() -> None:
    memory = Memory()
    memory.computed([1, 2, 3, 4, 5, 6, 7, 8])
    context = memory.open([1, 2, 3, 4, 5, 6, 0, 8, 9])
    assert context.match_prefix() == 6
    memory.check()


def test_a_block_matched_in_part_is_copied_before_it_is_written() -> None:
    memory = Memory()
    first = memory.computed([1, 2, 3, 4])
    second = memory.open([1, 2, 7, 8])
    second.match_prefix()
    assert second.blocks == first.blocks
    assert memory.step([second]) == 1
    assert second.blocks != first.blocks
    memory.check()


def test_the_longest_of_many_siblings_is_matched() -> None:
    memory = Memory(64)
    for token in range(50):
        memory.close(memory.computed([1, 1, token // 10, token]))
    context = memory.open([1, 1, 3, 99])
    assert context.match_prefix() == 3
    assert memory.slots[context.blocks[0] * SIZE + 2] == (1, 1, 3)


def test_a_gap_ends_a_match_even_if_later_blocks_are_cached() -> None:
    """nano-vllm #20: KV depends on everything before it, so hits are contiguous from the start."""
    memory = Memory()
    memory.computed([1] * 4 + [2] * 4 + [3] * 4)
    context = memory.open([1] * 4 + [9] * 4 + [3] * 4)
    assert context.match_prefix() == 4


def test_two_contexts_that_computed_the_same_end_up_in_the_same_blocks() -> None:
    memory = Memory()
    first, second = memory.open(range(10)), memory.open(range(10))
    memory.step([first, second])
    assert first.blocks[:2] == second.blocks[:2]
    assert first.blocks[2] != second.blocks[2]
    assert memory.pool.free_count == BLOCKS - 4
    memory.check()


def test_a_better_match_replaces_a_partial_block() -> None:
    memory = Memory()
    other = memory.open(range(8))
    context = memory.open(range(8))
    memory.step([context], count=6)
    memory.step([other])
    assert context.match_prefix() == 2
    assert context.blocks == other.blocks
    assert memory.pool.free_count == BLOCKS - 2
    memory.check()


def test_a_match_that_gains_nothing_changes_nothing() -> None:
    memory = Memory()
    memory.computed([1, 2, 3, 4])
    context = memory.open([1, 2, 3, 0])
    memory.step([context], count=3)
    blocks = list(context.blocks)
    assert context.match_prefix() == 0
    assert context.blocks == blocks


def test_a_prefill_that_is_all_matched_is_done() -> None:
    memory = Memory()
    memory.computed(range(8))
    context = memory.open(range(8))
    context.match_prefix()
    assert (context.pending, context.state) == (0, "idle")
    context.drop_kv()
    assert context.pending == 0


# Rewinding


def test_undo_and_redo_compute_nothing_again() -> None:
    memory = Memory()
    context = memory.computed(range(16))
    memory.edit(context, 5, [99] * 4)
    memory.step([context])
    memory.edit(context, 5, range(5, 16))
    assert context.match_prefix() == 11
    memory.edit(context, 5, [99] * 4)
    assert context.match_prefix() == 3, "8 of 9 tokens filled blocks"
    memory.check()


def test_a_rewind_keeps_every_token_before_it() -> None:
    memory = Memory()
    context = memory.computed(range(11))
    memory.edit(context, 6, [7, 7])
    assert (context.kv_length, context.pending) == (6, 2)


def test_a_thousand_rewinds_leak_nothing() -> None:
    memory = Memory()
    context = memory.computed(range(30))
    for turn in range(1000):
        memory.edit(context, turn * 7 % 30, range(turn, turn + 30 - turn * 7 % 30))
        context.match_prefix()
        memory.step([context])
        if turn % 100 == 0:
            memory.check()
    assert len(context.blocks) == 8
    memory.close(context)
    memory.check()
    assert memory.pool.free_count == BLOCKS


def test_forks_of_forks_part_where_they_differ() -> None:
    memory = Memory()
    root = memory.computed(range(6))
    family = [root]
    for generation_number in range(4):
        child = memory.fork(family[-1])
        child.append([100 + generation_number] * 3)
        memory.step([child])
        family.append(child)
    memory.check()
    assert all(member.blocks[0] == root.blocks[0] for member in family)
    memory.close(root)
    memory.edit(family[2], 7, [5, 5, 5])
    memory.step([family[2]])
    memory.check()


def test_a_fork_inherits_model_and_payer() -> None:
    context = Memory().open([1])
    context.model, context.payer = 1, 7
    child = context.fork(2, "background")
    assert (child.model, child.payer) == (1, 7)


# Room


def test_a_context_as_large_as_the_pool_can_be_rewritten() -> None:
    """There is no block to copy the keyed one to, so it loses its key."""
    memory = Memory(2)
    context = memory.computed([1, 2, 3, 4, 5, 6, 7, 8])
    memory.edit(context, 6, [0, 0])
    assert context.blocks_needed(2) == 0
    assert memory.step([context]) == 0
    memory.check()
    assert memory.cached_texts() == [(), (1, 2, 3, 4), (1, 2, 3, 4, 5, 6, 0, 0)]


def test_a_cached_sibling_is_evicted_rather_than_a_keyed_block_overwritten() -> None:
    memory = Memory(2)
    memory.close(memory.computed([9] * 4))
    context = memory.computed([1, 2, 3, 4])
    memory.edit(context, 2, [0, 0])
    assert memory.step([context]) == 1
    assert memory.open([1, 2, 3, 4]).match_prefix() == 4


def test_eviction_spares_what_a_context_holds() -> None:
    memory = Memory(4)
    kept = memory.computed(range(8))
    memory.close(memory.computed(range(50, 58)))
    memory.computed(range(60, 68))
    memory.check()
    assert memory.open(range(8)).match_prefix() == 8
    assert memory.open(range(50, 58)).match_prefix() == 0
    with pytest.raises(OutOfBlocks):
        kept.reserve(1)


def test_spoiled_kv_is_found_by_nobody() -> None:
    memory = Memory()
    memory.close(memory.computed(range(16)))
    context = memory.open([*range(8), 99])
    context.match_prefix()
    memory.step([context])
    assert context.drop_kv(spoiled=True) == 9
    assert memory.cached_texts() == [()]
    assert memory.pool.cached_count == 0
    memory.check()


def test_a_block_that_others_use_is_not_spoiled() -> None:
    memory = Memory()
    memory.computed(range(8))
    context = memory.open(range(12))
    context.match_prefix()
    memory.step([context])
    context.drop_kv(spoiled=True)
    memory.check()
    assert memory.open(range(12)).match_prefix() == 8


def test_rejected_drafts_are_neither_kept_nor_keyed() -> None:
    memory = Memory()
    context = memory.open([1, 1, 1])
    generation(context, proposal=[2] * 8)
    memory.step([context], accepted=2)
    assert context.tokens == [1, 1, 1, 2, 2, 3]
    assert context.kv_length == 5
    assert len(context.blocks) == 3, "room is kept for the next step"
    assert memory.cached_texts() == [(), (1, 1, 1, 2)]
    memory.check()
    context.trim()
    assert len(context.blocks) == 2
    memory.check()


def test_room_left_by_a_draft_survives_a_fork() -> None:
    memory = Memory()
    context = memory.open([1, 1, 1])
    generation(context, proposal=[2] * 8)
    memory.step([context])
    child = memory.fork(context)
    assert len(child.blocks) == 1
    assert memory.step([context]) == 1
    memory.check()


# Work


def test_the_last_token_waits_for_the_grammar() -> None:
    memory = Memory()
    context = memory.open(range(5))
    pending = generation(context, ready=False)
    assert context.pending == 4
    memory.step([context])
    assert (context.pending, context.state) == (0, "running")
    pending.compiling = None
    assert context.pending == 1
    assert not context.is_decoding


def test_only_the_token_sampled_last_makes_a_decode() -> None:
    memory = Memory()
    context = memory.open([1, 2])
    generation(context)
    seen = [context.is_decoding]
    memory.step([context])
    seen.append(context.is_decoding)
    context.drop_kv()
    seen.append(context.is_decoding)
    assert seen == [False, True, False]
