"""`Timing` as the running engine learns it: from its own steps and moves."""

from __future__ import annotations

from engine.kv.tiers import Tiers
from engine.step_time import StepTime


class LearnedTiming:
    """See `Timing`. Of one model."""

    def __init__(self, step_time: StepTime, model: int, tiers: Tiers) -> None:
        self._step_time = step_time
        self._model = model
        self._tiers = tiers

    @property
    def saturation_tokens(self) -> int:
        """As many tokens as cost what an empty step does: from there on a step is dearer with every one."""
        return max(self._step_time.tokens_within(self._model, self._step_time.predict(self._model, 0), joins=True), 1)

    def forward_s(self, query_tokens: int, context_tokens: int) -> float:
        """See `Timing`."""
        return self._step_time.predict(self._model, query_tokens, context_tokens)

    def swap_s(self, tokens: int) -> float:
        """See `Timing`."""
        # Without a host a block takes for ever, and nothing times that is not a number.
        return tokens * self._tiers.seconds_per_block / self._tiers.pool.block_size if tokens else 0.0
