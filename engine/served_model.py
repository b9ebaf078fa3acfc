"""One model of the engine: its runner, its KV pool and its grammars. Work in, sampled tokens out."""

from __future__ import annotations

from collections.abc import Sequence

from engine import messages as m
from engine.interception.policies.static import Preserve
from engine.interception.policy import Policy
from engine.kv.blocks import BlockPool
from engine.kv.swap import Swapper
from engine.kv.tiers import Tiers
from engine.model.batch import Batch, Runner, SequenceInput
from engine.model.grammar import GrammarCompiler, MaskFiller, MaskRow
from engine.model.sampler import Sampled, SampleRow, sample
from engine.scheduler import Work


class ServedModel:
    """`launch` starts a step's work; the tokens it samples are read later, which waits for the device."""

    def __init__(
        self,
        name: str,
        runner: Runner,
        grammars: GrammarCompiler | None = None,
        *,
        swapper: Swapper | None = None,
        policy: Policy | None = None,
    ) -> None:
        """`swapper` moves KV to the host and back, as `policy` decides for contexts that are held."""
        self.name = name
        self.runner = runner
        self.grammars = grammars
        self.pool = BlockPool(runner.kv_blocks, runner.block_size, swapper.slots if swapper is not None else None)
        self.tiers = Tiers(self.pool, swapper)
        self.policy: Policy = policy or Preserve()
        self.max_context = min(runner.max_positions, runner.kv_blocks * runner.block_size)
        self._masks = MaskFiller()

    @property
    def info(self) -> m.ModelInfo:
        """What the host is told of it."""
        runner = self.runner
        return m.ModelInfo(
            name=self.name,
            runner=runner.name,
            weights=runner.weights,
            max_context=self.max_context,
            block_size=runner.block_size,
            kv_blocks=runner.kv_blocks,
            bytes_per_token=runner.bytes_per_token,
        )

    def launch(self, work: Sequence[Work], after: Sampled | None = None) -> Sampled | None:
        """Computes `work`; one row per token to be sampled, in order, or None when nothing samples.

        With `after`, each work is a single token: that of the same row of `after`, which need not be on the host yet.
        """
        sequences = [_sequence(w) for w in work] if after is None else [_placeholder(w) for w in work]
        copies = [copy for w in work for copy in w.copies]
        rows, masked = _rows(work)
        masks = self._masks.start(masked, len(rows), self.runner.vocab_size) if masked else None
        logits = self.runner.run(Batch(sequences, copies, after.tokens if after is not None else None))
        return sample(logits, rows, masks.result() if masks is not None else None) if rows else None


def _sequence(work: Work) -> SequenceInput:
    context = work.context
    tokens = context.tokens[work.start : work.start + work.count]
    tokens += work.draft
    return SequenceInput(tokens, work.start, context.blocks, 1 + len(work.draft) if work.samples else 0)


def _placeholder(work: Work) -> SequenceInput:
    return SequenceInput([0], work.start, work.context.blocks, 1)


def _rows(work: Sequence[Work]) -> tuple[list[SampleRow], list[MaskRow]]:
    rows: list[SampleRow] = []
    masked: list[MaskRow] = []
    for w in work:
        generation = w.context.generation
        if not w.samples or generation is None:
            continue
        if generation.matcher is not None:
            masked.append(MaskRow(len(rows), generation.matcher, w.draft))
        sampling, position = generation.params.sampling, w.start + w.count
        top, counts = generation.params.top_logprobs, generation.counts
        for i in range(1 + len(w.draft)):
            rows.append(SampleRow(sampling, position + i, top, counts, w.draft[:i] if counts is not None else ()))
    return rows, masked
