"""The fast path on CUDA: the layers written out, our Triton kernels between cuBLAS products, CUDA graphs for decoding.

Tokens of decodes, of drafts and of short appends are each a row of paged attention; longer pieces of text attend on
their own. A step of such rows only is padded to one of a few sizes and replayed as a graph that was captured at start:
the host then copies one array to the device and launches once. Nothing here waits for the device.

`torch.compile` is not used: what it would fuse is fused already, and compiling costs most of a minute at each start.

On CPU everything but the graphs runs as well, which is how it is tested.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import embedding, scaled_dot_product_attention

from engine.kv.planes import Planes
from engine.model.batch import Batch, SequenceInput
from engine.model.layer_ops import Heads, Ops, Rows, TorchOps
from engine.model.native_cpu import kv_bytes_per_token
from engine.model.weights import UnsupportedModel, Weights

GRAPH_ROWS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
_TABLE_SIZE = 1 << 16
"""Block numbers that the steps of graphs may have; longer ones run without."""
_SINGLE_TOKENS = 16
"""Sequences of at most so many tokens are single rows."""


@dataclass(frozen=True, slots=True)
class _Prefill:
    """A longer piece: its rows, its blocks in the table, and how many tokens it attends to with itself."""

    rows: slice
    blocks: slice
    length: int


@dataclass(frozen=True, slots=True)
class _Layout:
    """A step on the host; `wanted` are the rows that logits are wanted of, `singles` the rows before all prefills."""

    tokens: array[int]
    positions: array[int]
    starts: array[int]
    wanted: array[int]
    table: array[int]
    prefills: list[_Prefill]
    singles: int


class NativeCudaRunner:
    """See `Runner`. Device and dtype (float32 or bfloat16) are those of `weights`, which are kept, not copied."""

    name = "native"

    def __init__(
        self, weights: Weights, kv_blocks: int, block_size: int = 16, ops: Ops | None = None, graphs: bool = True
    ) -> None:
        """Captures all graphs unless `graphs` is false or the device is a CPU. Raises `UnsupportedModel`."""
        config = weights.config
        self.vocab_size = config.vocab
        self.max_positions = config.max_positions
        self.block_size = block_size
        self.kv_blocks = kv_blocks
        self._weights = weights
        self._device, dtype = weights.embedding.device, weights.embedding.dtype
        self.bytes_per_token = kv_bytes_per_token(config, dtype)
        self.weights = "fp32" if dtype == torch.float32 else "bf16"
        self._ops = ops or _best_ops(self._device)
        self._heads = Heads(config.heads, config.kv_heads, config.head_dim, config.eps)
        self._frequencies = torch.tensor(config.inverse_frequencies, device=self._device)
        # The last block is scratch: padded rows write there.
        shape = (2, config.layers, kv_blocks + 1, block_size, config.kv_heads, config.head_dim)
        self._kv = torch.empty(shape, dtype=dtype, device=self._device)
        self.kv_planes: Planes = [self._kv.permute(2, 0, 1, 3, 4, 5)[:kv_blocks]]
        self._inputs = torch.zeros(4 * GRAPH_ROWS[-1] + _TABLE_SIZE, dtype=torch.int32, device=self._device)
        self._logits = torch.empty(GRAPH_ROWS[-1], config.vocab, device=self._device)
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        if graphs and self._device.type == "cuda":
            self._capture()

    def close(self) -> None:
        """See `Runner.close`."""
        self._graphs.clear()

    @torch.inference_mode()
    def run(self, batch: Batch) -> torch.Tensor:
        """See `Runner.run`. Raises `ValueError` for a batch outside the model or the pool, before anything is done."""
        layout = _lay_out(batch.sequences, self.block_size, self.kv_blocks)
        self._check(batch, layout)
        for source, target in batch.copies:
            self._kv[:, :, target] = self._kv[:, :, source]
        if not layout.tokens:
            return self._logits[:0]
        rows = _graph_rows(layout)
        if rows is not None:
            self._stage(layout, rows, batch.sampled)
            return self._replay(rows)[: len(layout.wanted)]
        rows = len(layout.tokens)
        inputs = self._pack(layout, rows).to(self._device, non_blocking=True)
        if batch.sampled is not None:
            inputs[:rows] = batch.sampled
        return self._forward(inputs, rows, len(layout.wanted), layout.singles, layout.prefills).float()

    def _check(self, batch: Batch, layout: _Layout) -> None:
        """The kernels trust what they are given."""
        if batch.sampled is not None and len(batch.sampled) != len(layout.tokens):
            raise ValueError("not one sampled token for each sequence")
        if layout.tokens and not 0 <= min(layout.tokens) <= max(layout.tokens) < self.vocab_size:
            raise ValueError(f"a token id is not below {self.vocab_size}")
        for blocks in (layout.table[1:], list(chain.from_iterable(batch.copies))):
            if blocks and not 0 <= min(blocks) <= max(blocks) < self.kv_blocks:
                raise ValueError(f"a block is not in the pool of {self.kv_blocks}")
        for sequence in batch.sequences:
            end = sequence.start + len(sequence.tokens)
            if sequence.start < 0 or end > len(sequence.blocks) * self.block_size:
                raise ValueError(f"{end} tokens do not fit {len(sequence.blocks)} blocks")
            if not 0 <= sequence.logit_rows <= len(sequence.tokens):
                raise ValueError(f"{sequence.logit_rows} rows of logits for {len(sequence.tokens)} tokens")

    def _pack(self, layout: _Layout, rows: int) -> torch.Tensor:
        """Tokens, positions, starts and wanted rows, then the table: what `_forward` takes, on the host. Filled up
        with rows of the scratch block."""
        stride = _stride(rows)
        # Torch reuses pinned memory only after copies from it are done, so steps may follow each other unread.
        pinned = self._device.type == "cuda"
        packed = torch.zeros(4 * stride + len(layout.table), dtype=torch.int32, pin_memory=pinned)
        host = packed.numpy()
        for i, values in enumerate((layout.tokens, layout.positions, layout.starts, layout.wanted)):
            host[i * stride : i * stride + len(values)] = values
        host[4 * stride :] = layout.table
        return packed

    def _stage(self, layout: _Layout, rows: int, sampled: torch.Tensor | None) -> None:
        packed = self._pack(layout, rows)
        self._inputs[: len(packed)].copy_(packed, non_blocking=True)
        if sampled is not None:
            self._inputs[: len(sampled)] = sampled

    def _replay(self, rows: int) -> torch.Tensor:
        """The step whose inputs are staged; logits `[rows, vocab_size]`."""
        if rows in self._graphs:
            self._graphs[rows].replay()
        else:
            self._logits[:rows] = self._forward(self._inputs, rows, rows, rows, [])
        return self._logits[:rows]

    @torch.inference_mode()
    def _capture(self) -> None:
        pool = None
        stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        nothing = _lay_out([], self.block_size, self.kv_blocks)
        for rows in reversed(GRAPH_ROWS):
            self._stage(nothing, rows, None)
            stream.wait_stream(torch.cuda.current_stream())
            # Once outside: kernels are compiled and libraries take their workspaces.
            with torch.cuda.stream(stream):
                self._replay(rows)
            torch.cuda.current_stream().wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            # Steps run one after another and leave nothing but logits in memory of the runner's own, so all graphs can
            # use the same memory.
            with torch.cuda.graph(graph, pool=pool, stream=stream):
                self._replay(rows)
            self._graphs[rows], pool = graph, graph.pool()

    def _forward(
        self, inputs: torch.Tensor, rows: int, wanted: int, singles: int, prefills: Sequence[_Prefill]
    ) -> torch.Tensor:
        """Logits `[wanted, vocab_size]` in the model's dtype; `inputs` are those of `_pack`."""
        stride, ops, config = _stride(rows), self._ops, self._weights.config
        tokens, positions, starts, chosen = (inputs[i * stride : i * stride + rows] for i in range(4))
        step = self._rows(positions, starts, inputs[4 * stride :])
        residual, delta = embedding(tokens, self._weights.embedding), None
        for index, layer in enumerate(self._weights.layers):
            keys, values = self._kv[0, index], self._kv[1, index]
            normed = ops.add_norm(residual, delta, layer.input_norm, config.eps)
            qkv = ops.linear(normed, layer.qkv, layer.qkv_bias)
            query = ops.rotate_and_store(qkv, layer, self._heads, step, keys, values)
            attended = self._attend(query, keys, values, step, singles, prefills)
            delta = ops.linear(attended.view(rows, -1), layer.output)
            normed = ops.add_norm(residual, delta, layer.post_norm, config.eps)
            delta = ops.linear(ops.gate(ops.linear(normed, layer.gate_up)), layer.down)
        normed = ops.add_norm(residual, delta, self._weights.final_norm, config.eps)
        return ops.linear(normed[chosen[:wanted]], self._weights.head)

    def _rows(self, positions: torch.Tensor, starts: torch.Tensor, table: torch.Tensor) -> Rows:
        block, offset = positions // self.block_size, positions % self.block_size
        slots = table[starts + block].long() * self.block_size + offset
        angles = positions.float().unsqueeze(1) * self._frequencies
        return Rows(positions, starts, table, slots, angles.cos(), angles.sin())

    def _attend(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        rows: Rows,
        singles: int,
        prefills: Sequence[_Prefill],
    ) -> torch.Tensor:
        if not prefills:
            return self._ops.attend(query, keys, values, rows)
        output = torch.empty_like(query)
        if singles:
            output[:singles] = self._ops.attend(query[:singles], keys, values, rows)
        for piece in prefills:
            # Copying K and V is little beside what many queries do with them. [1, heads, tokens, dim]
            blocks = rows.table[piece.blocks]
            k, v = (pool[blocks].flatten(0, 1)[: piece.length].transpose(0, 1).unsqueeze(0) for pool in (keys, values))
            q = query[piece.rows].transpose(0, 1).unsqueeze(0)
            mask = causal_lower_right(q.shape[2], piece.length)
            attended = scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
            output[piece.rows] = attended[0].transpose(0, 1)
        return output


def _best_ops(device: torch.device) -> Ops:
    if device.type != "cuda":
        return TorchOps()
    try:
        from engine.model.layer_ops_triton import TritonOps
    except ImportError as error:
        raise UnsupportedModel(f"the native CUDA runner needs Triton: {error}") from error
    return TritonOps()


def _lay_out(sequences: Sequence[SequenceInput], block_size: int, scratch: int) -> _Layout:
    """Sequences of few tokens first. The table begins with the scratch block, for rows that pad."""
    tokens, positions, starts, table = array("i"), array("i"), array("i"), array("i", [scratch])
    prefills: list[_Prefill] = []
    begins = [0] * len(sequences)
    singles = 0
    for i in sorted(range(len(sequences)), key=lambda i: len(sequences[i].tokens) > _SINGLE_TOKENS):
        sequence = sequences[i]
        begins[i], first, count = len(tokens), len(table), len(sequence.tokens)
        length = sequence.start + count
        tokens.extend(sequence.tokens)
        positions.extend(range(sequence.start, length))
        starts.extend([first] * count)
        table.extend(sequence.blocks[: -(-length // block_size)])
        if count > _SINGLE_TOKENS:
            prefills.append(_Prefill(slice(begins[i], len(tokens)), slice(first, len(table)), length))
        else:
            singles = len(tokens)
    ends = [begin + len(sequence.tokens) for begin, sequence in zip(begins, sequences, strict=True)]
    wanted = [range(end - s.logit_rows, end) for end, s in zip(ends, sequences, strict=True)]
    return _Layout(tokens, positions, starts, array("i", chain.from_iterable(wanted)), table, prefills, singles)


def _graph_rows(layout: _Layout) -> int | None:
    """The size that the step is padded to; None if no graph can hold it."""
    if layout.prefills or len(layout.table) > _TABLE_SIZE:
        return None
    return next((rows for rows in GRAPH_ROWS if rows >= len(layout.tokens)), None)


def _stride(rows: int) -> int:
    """Triton compiles a kernel anew for pointers that are not multiples of 16 bytes: four int32."""
    return -(-rows // 4) * 4
