"""Paged attention against the plain formula, over scattered blocks and windows."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.kv.tensors import KvTensors
from engine.model.attention import lay_out, paged_attention
from engine.model.batch import SequenceInput

HEADS, KV_HEADS, DIM, BLOCK, BLOCKS = 4, 2, 8, 4, 40
CPU = torch.device("cpu")
LAYER = SimpleNamespace(layer_idx=0)


def make_pool() -> KvTensors:
    """Poisoned: a read of what was not written shows."""
    kv = KvTensors(1, KV_HEADS, DIM, BLOCKS, BLOCK, torch.float32, CPU)
    for tensor in (*kv.keys, *kv.values):
        tensor.fill_(torch.nan)
    return kv


def plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int | None) -> torch.Tensor:
    """softmax(q k / sqrt(d)) v, query by query; `[heads, length, dim]` each."""
    rows = []
    for i in range(q.shape[1]):
        first = 0 if window is None else max(i + 1 - window, 0)
        seen = slice(first, i + 1)
        keys, values = (t[:, seen].repeat_interleave(HEADS // KV_HEADS, 0) for t in (k, v))
        weights = (keys @ q[:, i, :, None] / DIM**0.5).softmax(1)
        rows.append((weights * values).sum(1))
    return torch.stack(rows)


@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=3),
    window=st.one_of(st.none(), st.integers(1, 12)),
    is_run=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_any_chunking_equals_the_formula(lengths: list[int], window: int | None, is_run: bool, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    kv = make_pool()
    order = list(range(BLOCKS)) if is_run else torch.randperm(BLOCKS, generator=generator).tolist()
    blocks = [order[i * 10 : i * 10 + 8] for i in range(len(lengths))]
    data = [
        [torch.randn(heads, length, DIM, generator=generator) for heads in (HEADS, KV_HEADS, KV_HEADS)]
        for length in lengths
    ]
    done, outputs = [0] * len(lengths), [torch.empty(0, HEADS, DIM) for _ in lengths]
    while pending := [i for i, length in enumerate(lengths) if done[i] < length]:
        counts = {i: int(torch.randint(1, lengths[i] - done[i] + 1, (), generator=generator)) for i in pending}
        inputs = [SequenceInput([0] * counts[i], done[i], blocks[i], 0) for i in pending]
        q, k, v = (
            torch.cat([data[i][part][:, done[i] : done[i] + counts[i]] for i in pending], 1).unsqueeze(0)
            for part in range(3)
        )
        batch = lay_out(inputs, kv, HEADS // KV_HEADS, CPU)
        output, _ = paged_attention(LAYER, q, k, v, None, paged_batch=batch, sliding_window=window)
        for i, rows in zip(pending, torch.split(output[0], [counts[i] for i in pending]), strict=True):
            outputs[i] = torch.cat([outputs[i], rows])
            done[i] += counts[i]
    for output, (q, k, v) in zip(outputs, data, strict=True):
        torch.testing.assert_close(output, plain(q, k, v, window), atol=1e-5, rtol=1e-4)


def test_what_it_does_not_compute_is_refused() -> None:
    batch = lay_out([SequenceInput([0], 0, [0], 0)], make_pool(), 2, CPU)
    q, k = torch.zeros(1, HEADS, 1, DIM), torch.zeros(1, KV_HEADS, 1, DIM)
    with pytest.raises(NotImplementedError, match="soft capping"):
        paged_attention(LAYER, q, k, k, None, paged_batch=batch, softcap=50.0)
    with pytest.raises(NotImplementedError, match="sinks"):
        paged_attention(LAYER, q, k, k, None, paged_batch=batch, s_aux=torch.zeros(HEADS))


def test_blocks_are_copied_whole_and_in_order() -> None:
    kv = make_pool()
    kv.keys[0][:, :BLOCK] = 1.0
    kv.copy_blocks([(0, 5), (5, 7)])
    assert (kv.keys[0][:, 7 * BLOCK : 8 * BLOCK] == 1.0).all()
    assert kv.keys[0][:, 6 * BLOCK : 7 * BLOCK].isnan().all()
