"""Runs any transformers causal LM whose attention goes through the attention interface: breadth, and the oracle."""

from __future__ import annotations

from typing import Any

import torch

from engine.kv.planes import Planes, planes_of
from engine.kv.tensors import KvTensors
from engine.model.attention import lay_out
from engine.model.batch import Batch


class TransformersRunner:
    """`model` must have been loaded with `attn_implementation=attention.IMPLEMENTATION` (see `loader`); with `shards`
    it is one of as many parts, and has that part of the KV heads."""

    def __init__(self, model: Any, kv_blocks: int, block_size: int, shards: int = 1) -> None:
        config = model.config
        self.name = "transformers"
        self.weights = "fp32" if model.dtype == torch.float32 else "bf16"
        self._model = model
        self._device = torch.device(model.device)
        self._groups = config.num_attention_heads // config.num_key_value_heads
        self._kv = make_kv(model, kv_blocks, block_size, shards)
        self.kv_planes: Planes = planes_of(self._kv)
        self.vocab_size: int = config.vocab_size
        self.max_positions: int = config.max_position_embeddings
        self.bytes_per_token = kv_bytes_per_token(config, model.dtype) // shards
        self.block_size = block_size
        self.kv_blocks = kv_blocks

    @torch.inference_mode()
    def run(self, batch: Batch) -> torch.Tensor:
        """See `Runner.run`."""
        self._kv.copy_blocks(batch.copies)
        tokens = [token for sequence in batch.sequences for token in sequence.tokens]
        positions = [sequence.start + i for sequence in batch.sequences for i in range(len(sequence.tokens))]
        if batch.sampled is not None:
            input_ids = batch.sampled.unsqueeze(0).to(self._device)
        else:
            input_ids = torch.tensor([tokens], device=self._device)
        # The model picks the rows itself: what it does with logits after its head (scaling, capping) is its own affair.
        logits: torch.Tensor = self._model(
            input_ids=input_ids,
            position_ids=torch.tensor([positions], device=self._device),
            use_cache=False,
            logits_to_keep=self._last_rows(batch),
            paged_batch=lay_out(batch.sequences, self._kv, self._groups, self._device),
        ).logits[0]
        return logits.float()

    def close(self) -> None:
        """See `Runner.close`: there is nothing to end."""

    def _last_rows(self, batch: Batch) -> torch.Tensor:
        rows: list[int] = []
        end = 0
        for sequence in batch.sequences:
            end += len(sequence.tokens)
            rows.extend(range(end - sequence.logit_rows, end))
        return torch.tensor(rows, dtype=torch.int64, device=self._device)


def make_kv(model: Any, blocks: int, block_size: int, shards: int) -> KvTensors:
    """An empty pool for this rank's share of the KV heads."""
    config = model.config
    kv_heads = config.num_key_value_heads // shards
    device = torch.device(model.device)
    return KvTensors(config.num_hidden_layers, kv_heads, _head_dim(config), blocks, block_size, model.dtype, device)


def kv_bytes_per_token(config: Any, dtype: torch.dtype) -> int:
    """Bytes of K and V over all layers for one token."""
    return int(2 * config.num_hidden_layers * config.num_key_value_heads * _head_dim(config) * dtype.itemsize)


def _head_dim(config: Any) -> int:
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
