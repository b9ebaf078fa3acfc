"""Before a model serves: does paged attention say what transformers' own attention says?

An architecture may ask its attention for something that only some implementations know (sinks, score changes, a window
that is told in no argument). No list of names keeps up with that, so a short text is computed both ways.
"""

from __future__ import annotations

from typing import Any

import torch

from engine.kv.tensors import KvTensors
from engine.model.attention import IMPLEMENTATION, lay_out
from engine.model.batch import SequenceInput

TOKENS = 24
_CUT = 7
_BOUND = {torch.float32: 0.01}
_ROUGH_BOUND = 0.4
"""Of a token's logits: the norm of the difference relative to their own, median over tokens. Seen in bfloat16: 0.01 and
0.04 with trained models, up to 0.3 with random mixtures of experts; wrong attention that fails nowhere else: 0.5."""


@torch.inference_mode()
def difference(model: Any, kv: KvTensors) -> str | None:
    """Why the model cannot be served, or None. `kv` has two blocks of `TOKENS // 2`."""
    for tensor in (*kv.keys, *kv.values):
        tensor.fill_(torch.nan)
    ids = torch.tensor([[3 + i * i * 31 % (model.config.vocab_size - 3) for i in range(TOKENS)]], device=kv.device)
    positions = torch.arange(TOKENS, device=kv.device).unsqueeze(0)
    groups = model.config.num_attention_heads // model.config.num_key_value_heads
    pieces: list[torch.Tensor] = []
    windows: set[int | None] = set()
    # In two pieces: what a layer keeps wrongly shows in the second.
    for start, end in ((0, _CUT), (_CUT, TOKENS)):
        batch = lay_out([SequenceInput(range(end - start), start, (1, 0), 0)], kv, groups, kv.device)
        inputs = {"input_ids": ids[:, start:end], "position_ids": positions[:, start:end]}
        try:
            pieces.append(model(**inputs, use_cache=False, paged_batch=batch).logits.float())
        except Exception as error:
            return f"paged attention failed: {error}"
        windows |= batch.windows
    if any(tensor.isnan().any() for tensor in (*kv.keys, *kv.values)):
        return "not all of its layers use transformers' attention interface"
    if _slides(model.config) and windows <= {None}:
        return "its layers do not tell their sliding window"
    model.set_attn_implementation("eager")
    try:
        expected = model(input_ids=ids, position_ids=positions, use_cache=False).logits.float()
    finally:
        model.set_attn_implementation(IMPLEMENTATION)
    distances = (torch.cat(pieces, 1) - expected).norm(dim=-1) / expected.norm(dim=-1)
    # Not the mean: in bfloat16 a mixture of experts may route single tokens elsewhere.
    distance = float(distances.median())
    if not distance <= _BOUND.get(model.dtype, _ROUGH_BOUND):
        return f"paged attention differs from its own by {distance:.0%}"
    return None


def _slides(config: Any) -> bool:
    kinds = getattr(config, "layer_types", None)
    if kinds:
        return "sliding_attention" in kinds
    return getattr(config, "sliding_window", None) is not None and getattr(config, "use_sliding_window", True)
