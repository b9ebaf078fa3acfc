"""A model without tensors: its steps take time on a clock, and every token it says is the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from bench.interception.setting import Setting
from engine.interception.policy import Policy, Timing
from engine.kv.blocks import BlockPool
from engine.kv.planes import Planes
from engine.kv.slots import SlotPool
from engine.kv.swap import SimulatedCopier, Swapper
from engine.kv.tiers import Tiers
from engine.model.batch import Batch
from engine.model.sampler import Sampled, SampledToken
from engine.scheduler import Work
from engine.served_model import ServedModel
from engine.step_time import StepTime

TOKEN = 0
VOCAB = 1 << 31
_EMPTY = torch.empty(0)


class VirtualClock:
    """Seconds since the start of a simulation."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class KnownStepTime(StepTime):
    """Predicts what `TimedModel` does instead of learning it.

    Without `mixes` tokens always have an iteration of their own, so they cost all of it (eq. 1 of InferCept); new
    prompts that share it are taken to be free.
    """

    def __init__(self, timing: Timing, *, mixes: bool) -> None:
        super().__init__()
        self._timing = timing
        self._mixes = mixes

    def learn(self, model: int, tokens: int, context_tokens: int, seconds: float) -> None:
        """Nothing."""

    def predict(self, model: int, tokens: int, context_tokens: int = 0) -> float:
        """See `StepTime`."""
        return self._timing.forward_s(tokens, context_tokens)

    def extra(self, model: int, tokens: int, context_tokens: int = 0, *, joins: bool) -> float:
        """See `StepTime`."""
        alone = self.predict(model, tokens, context_tokens)
        return alone - self.predict(model, 0) if joins and self._mixes else alone


class TimedModel(ServedModel):
    """A model of `setting`, with a host tier behind a modelled link.

    Without `prefix_cache` a block that nobody holds is free at once, as in InferCept, so whoever gives KV up computes
    it again. Without `mixes` prefill has an iteration of its own, for which decodes wait, as in the vLLM of that time.
    """

    def __init__(
        self, setting: Setting, clock: VirtualClock, policy: Policy, *, prefix_cache: bool, mixes: bool
    ) -> None:
        blocks, size = setting.kv_tokens // setting.block_size, setting.block_size
        slots = SlotPool(setting.host_tokens // size)
        block_bytes = setting.bytes_per_token * size
        swapper = Swapper(slots, SimulatedCopier(), blocks, block_bytes, gbps=setting.gbps, clock=clock)
        runner = _Facts(bytes_per_token=setting.bytes_per_token, block_size=size, kv_blocks=blocks)
        super().__init__(setting.name, runner, swapper=swapper, policy=policy)
        if not prefix_cache:
            self.pool = _UncachedPool(blocks, size, slots)
            self.tiers = Tiers(self.pool, swapper)
        self._mixes = mixes
        self._timing = setting.timing
        self._clock = clock

    def launch(self, work: Sequence[Work], after: Sampled | None = None) -> Sampled | None:
        """Takes as long as the timing says."""
        decodes = [w for w in work if w.is_decode]
        prefills = [w for w in work if not w.is_decode]
        for part in [work] if self._mixes else filter(None, [decodes, prefills]):
            self._clock.now += self._timing.forward_s(sum(w.tokens for w in part), sum(w.context_tokens for w in part))
        rows = sum(1 + len(w.draft) for w in work if w.samples)
        return _Said(_EMPTY, _EMPTY, rows=rows) if rows else None


@dataclass(frozen=True, slots=True)
class _Said(Sampled):
    rows: int = 0

    def read(self) -> list[SampledToken]:
        return [SampledToken(TOKEN, None, False)] * self.rows


class _UncachedPool(BlockPool):
    def release(self, blocks: Sequence[int]) -> None:
        self.discard(blocks)


@dataclass(slots=True)
class _Facts:
    """What an engine has to know of a runner."""

    bytes_per_token: int
    block_size: int
    kv_blocks: int
    vocab_size: int = VOCAB
    max_positions: int = 1 << 30
    name: str = "simulated"
    weights: str = "none"
    kv_planes: Planes = ()

    def run(self, batch: Batch) -> torch.Tensor:
        raise NotImplementedError("a simulated model computes nothing")

    def close(self) -> None:
        """See `Runner`."""
