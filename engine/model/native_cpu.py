"""The fast path on CPUs: the whole forward pass of a step is one call of the C++ kernels in `cpu/`.

Each row's logits are computed in one fixed order of operations, whatever else is in the step and however the context
came to be: unlike with most kernels, the answer depends on the text only, in bfloat16 too.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from array import array
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import torch

from engine.kv.planes import Planes
from engine.model.batch import Batch, SequenceInput
from engine.model.weights import NativeConfig, UnsupportedModel, Weights

BLOCK_SIZE = 16
_TILE_INPUTS = 32
_FORMATS = {"none": 0, "int8": 1, "q4": 2}
_MATRICES = ("qkv", "output", "gate_up", "down", "head")
_VECTORS = ("input_norm", "post_norm", "qkv_bias", "q_norm", "k_norm", "final_norm")

Quantisation = Literal["none", "int8", "q4"]


class _Sizes(ctypes.Structure):
    """`Sizes` in model.h."""

    _fields_ = [
        *((name, ctypes.c_int32) for name in ("hidden", "layers", "heads", "kv_heads", "head_dim", "intermediate")),
        *((name, ctypes.c_int32) for name in ("vocab", "kv_blocks")),
        ("eps", ctypes.c_float),
    ]


class _Step(ctypes.Structure):
    """`Step` in model.h."""

    _fields_ = [
        *((name, ctypes.c_int32) for name in ("rows", "sequences", "copies", "wanted")),
        *((name, ctypes.c_void_p) for name in ("tokens", "starts", "lengths", "first_blocks", "blocks", "copied")),
        *((name, ctypes.c_void_p) for name in ("wanted_rows", "logits")),
    ]


def kv_bytes_per_token(config: NativeConfig, dtype: torch.dtype) -> int:
    """Bytes of K and V over all layers for one token."""
    return 2 * config.layers * config.kv_heads * config.head_dim * dtype.itemsize


def check_supported(config: NativeConfig, dtype: torch.dtype) -> None:
    """Raises `UnsupportedModel` for sizes that the kernels have no tiles for."""
    sizes = (config.hidden, config.intermediate, config.head_dim)
    if any(size % _TILE_INPUTS for size in sizes) or config.heads % config.kv_heads:
        raise UnsupportedModel(
            f"the native CPU runner needs sizes in multiples of {_TILE_INPUTS}; this model has hidden "
            f"{config.hidden}, intermediate {config.intermediate}, head {config.head_dim}"
        )
    if dtype not in (torch.float32, torch.bfloat16):
        raise UnsupportedModel(f"the native CPU runner has no {dtype} kernels")


class NativeCpuRunner:
    """See `Runner`. `dtype`, float32 or bfloat16, is that of products and KV: `weights`' own unless given.

    Quantise from the most exact weights there are: where a GGUF file held them in four bits (Q4_1, with an eight-bit
    head), float32 weights give back the very numbers of the file. From such weights bfloat16 too is kept in four or
    eight bits, if and only if every number comes back as the bfloat16 it would have been.
    """

    name = "native"
    block_size = BLOCK_SIZE

    def __init__(
        self,
        weights: Weights,
        kv_blocks: int,
        threads: int,
        quantisation: Quantisation,
        library: Path,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Packs a copy of the weights; keeps only their embedding. Raises `UnsupportedModel`, `MemoryError`."""
        config, dtype = weights.config, dtype or weights.embedding.dtype
        check_supported(config, dtype)
        self.vocab_size = config.vocab
        self.max_positions = config.max_positions
        self.bytes_per_token = kv_bytes_per_token(config, dtype)
        self.kv_blocks = kv_blocks
        self.weights: str = quantisation if quantisation != "none" else "fp32" if dtype == torch.float32 else "bf16"
        self._logits = torch.empty(0, config.vocab)
        self._kernels = _load(library)
        self._model = _create(self._kernels, config, kv_blocks, dtype, threads)
        self._close = weakref.finalize(self, _destroy, self._kernels, self._model, os.getpid())
        self.kv_planes: Planes = [self._pool()]
        self._embedding = (weights.embedding if quantisation != "none" else weights.embedding.to(dtype)).contiguous()
        self._kernels.midstream_set_embedding(self._model, self._embedding.data_ptr(), _is_narrow(self._embedding))
        self._pack(weights, quantisation)

    def close(self) -> None:
        """Ends the threads and frees the memory; no further `run`."""
        self._close()

    def run(self, batch: Batch) -> torch.Tensor:
        """See `Runner.run`. Raises `ValueError` for a batch outside the model or the pool, before anything is done."""
        sequences = batch.sequences
        if batch.sampled is None:
            tokens = array("i", chain.from_iterable(s.tokens for s in sequences))
        else:
            tokens = array("i", batch.sampled.tolist())
        starts = array("i", [s.start for s in sequences])
        lengths = array("i", [len(s.tokens) for s in sequences])
        tables = [s.blocks[: -(-(s.start + len(s.tokens)) // BLOCK_SIZE)] for s in sequences]
        blocks = array("i", chain.from_iterable(tables))
        first_blocks = _starts_of([len(table) for table in tables])
        copied = array("i", chain.from_iterable(batch.copies))
        wanted = _wanted_rows(sequences)
        self._check(sequences, tables, tokens, (blocks, copied))
        if len(wanted) > len(self._logits):
            self._logits = torch.empty(len(wanted), self.vocab_size)
        arrays = (tokens, starts, lengths, first_blocks, blocks, copied, wanted)
        addresses = [a.buffer_info()[0] for a in arrays]
        counts = (len(tokens), len(sequences), len(batch.copies), len(wanted))
        step = _Step(*counts, *addresses, self._logits.data_ptr())
        _raise_if(self._kernels.midstream_run(self._model, ctypes.byref(step)), "a step")
        return self._logits[: len(wanted)]

    def _check(
        self,
        sequences: Any,
        tables: list[Any],
        tokens: array[int],
        block_lists: tuple[array[int], array[int]],
    ) -> None:
        """The kernels trust what they are given."""
        if len(tokens) != sum(len(s.tokens) for s in sequences):
            raise ValueError("not one sampled token for each sequence")
        if tokens and not 0 <= min(tokens) <= max(tokens) < self.vocab_size:
            raise ValueError(f"a token id is not below {self.vocab_size}")
        for blocks in block_lists:
            if blocks and not 0 <= min(blocks) <= max(blocks) < self.kv_blocks:
                raise ValueError(f"a block is not in the pool of {self.kv_blocks}")
        for sequence, table in zip(sequences, tables, strict=True):
            end = sequence.start + len(sequence.tokens)
            if sequence.start < 0 or end > len(table) * BLOCK_SIZE:
                raise ValueError(f"{end} tokens do not fit {len(table)} blocks")
            if not 0 <= sequence.logit_rows <= len(sequence.tokens):
                raise ValueError(f"{sequence.logit_rows} rows of logits for {len(sequence.tokens)} tokens")

    def _pool(self) -> torch.Tensor:
        """The memory of the KV pool, uint8 `[blocks, bytes of a block]`, which ends with the model."""
        block_bytes = self.bytes_per_token * BLOCK_SIZE
        memory = (ctypes.c_uint8 * (self.kv_blocks * block_bytes)).from_address(
            self._kernels.midstream_pool(self._model)
        )
        return torch.frombuffer(memory, dtype=torch.uint8).view(self.kv_blocks, block_bytes)

    def _pack(self, weights: Weights, quantisation: Quantisation) -> None:
        for index, layer in enumerate(weights.layers):
            for name in ("qkv", "output", "gate_up", "down"):
                self._set_matrix(index, name, getattr(layer, name), quantisation)
            for name in ("input_norm", "post_norm", "qkv_bias", "q_norm", "k_norm"):
                self._set_vector(index, name, getattr(layer, name))
        self._set_vector(0, "final_norm", weights.final_norm)
        # A head in four bits costs more than it saves; GGUF files keep it in eight.
        self._set_matrix(0, "head", weights.head, "int8" if quantisation == "q4" else quantisation)

    def _set_matrix(self, layer: int, name: str, tensor: torch.Tensor, quantisation: Quantisation) -> None:
        tensor = tensor.contiguous()
        key, pointer, narrow = _MATRICES.index(name), tensor.data_ptr(), _is_narrow(tensor)
        failed = self._kernels.midstream_set_matrix(self._model, layer, key, pointer, narrow, _FORMATS[quantisation])
        _raise_if(failed, "the packed weights")

    def _set_vector(self, layer: int, name: str, tensor: torch.Tensor | None) -> None:
        if tensor is not None:
            values = tensor.float().contiguous()
            failed = self._kernels.midstream_set_vector(self._model, layer, _VECTORS.index(name), values.data_ptr())
            _raise_if(failed, "the weights")


def _starts_of(lengths: list[int]) -> array[int]:
    starts, end = array("i"), 0
    for length in lengths:
        starts.append(end)
        end += length
    return starts


def _wanted_rows(sequences: Any) -> array[int]:
    rows, end = array("i"), 0
    sequence: SequenceInput
    for sequence in sequences:
        end += len(sequence.tokens)
        rows.extend(range(end - sequence.logit_rows, end))
    return rows


def _is_narrow(tensor: torch.Tensor) -> bool:
    if tensor.dtype not in (torch.float32, torch.bfloat16):
        raise UnsupportedModel(f"the native CPU runner reads no {tensor.dtype} weights")
    return tensor.dtype == torch.bfloat16


def _raise_if(failed: int, what: str) -> None:
    if failed:
        raise MemoryError(f"no memory for {what}")


def _create(kernels: Any, config: NativeConfig, kv_blocks: int, dtype: torch.dtype, threads: int) -> int:
    sizes = _Sizes(
        hidden=config.hidden,
        layers=config.layers,
        heads=config.heads,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        intermediate=config.intermediate,
        vocab=config.vocab,
        kv_blocks=kv_blocks,
        eps=config.eps,
    )
    frequencies = (ctypes.c_float * len(config.inverse_frequencies))(*config.inverse_frequencies)
    model = kernels.midstream_create(ctypes.byref(sizes), frequencies, dtype == torch.bfloat16, threads)
    _raise_if(not model, "the KV pool")
    return int(model)


def _destroy(kernels: Any, model: int, owner: int) -> None:
    # A forked child has the object but not its threads: joining them would wait for ever.
    if os.getpid() == owner:
        kernels.midstream_destroy(model)


def _load(library: Path) -> Any:
    kernels = ctypes.CDLL(str(library))
    pointer, number = ctypes.c_void_p, ctypes.c_int
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "create": (pointer, [pointer, pointer, number, number]),
        "destroy": (None, [pointer]),
        "set_matrix": (number, [pointer, number, number, pointer, number, number]),
        "set_vector": (number, [pointer, number, number, pointer]),
        "set_embedding": (None, [pointer, pointer, number]),
        "pool": (pointer, [pointer]),
        "run": (number, [pointer, pointer]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(kernels, f"midstream_{name}")
        function.restype, function.argtypes = result, arguments
    return kernels
