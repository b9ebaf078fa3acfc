"""Sampling on small hand-made distributions."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest
import torch
import xgrammar
from hypothesis import given
from hypothesis import strategies as st

from engine.messages import Sampling
from engine.model.sampler import SampleRow, TokenCounts, sample, uniform, verify

PROBABILITIES = [0.1, 0.4, 0.05, 0.25, 0.2]


def logits(rows: int = 1) -> torch.Tensor:
    return torch.tensor([[math.log(p) for p in PROBABILITIES]]).repeat(rows, 1)


def chosen(values: torch.Tensor, rows: Sequence[SampleRow]) -> list[int]:
    return [token.token for token in sample(values, rows).read()]


def draws(count: int = 4000, **sampling: float) -> list[float]:
    """How often each token comes out."""
    options = Sampling(temperature=1.0, seed=3)
    fields = {f: getattr(options, f) for f in options.__struct_fields__} | sampling
    rows = [SampleRow(Sampling(**fields), position) for position in range(count)]
    tokens = chosen(logits(count), rows)
    return [tokens.count(token) / count for token in range(len(PROBABILITIES))]


def test_temperature_zero_is_greedy() -> None:
    assert chosen(logits(2), [SampleRow(Sampling(), 0), SampleRow(Sampling(seed=9), 5)]) == [1, 1]


def test_samples_follow_the_distribution() -> None:
    assert draws() == pytest.approx(PROBABILITIES, abs=0.03)


def test_low_temperature_sharpens() -> None:
    assert draws(temperature=0.05)[1] > 0.99


def test_top_k_keeps_the_k_best() -> None:
    assert draws(top_k=2) == pytest.approx([0, 0.4 / 0.65, 0, 0.25 / 0.65, 0], abs=0.03)


def test_top_p_keeps_the_smallest_set_that_reaches_p() -> None:
    assert draws(top_p=0.5) == pytest.approx([0, 0.4 / 0.65, 0, 0.25 / 0.65, 0], abs=0.03)


def test_tiny_top_p_keeps_the_best() -> None:
    assert draws(top_p=1e-6) == [0, 1, 0, 0, 0]


def test_min_p_is_relative_to_the_best() -> None:
    assert draws(min_p=0.45) == pytest.approx([0, 0.4 / 0.85, 0, 0.25 / 0.85, 0.2 / 0.85], abs=0.03)


def test_rows_do_not_influence_each_other() -> None:
    rows = [SampleRow(Sampling(temperature=0.5 + i / 10, top_k=i % 4, seed=i), i) for i in range(20)]
    together = chosen(logits(20), rows)
    assert together == [chosen(logits(), [row])[0] for row in rows]


@given(st.integers(), st.integers(0, 1 << 20))
def test_uniform_is_in_range_and_repeatable(seed: int, position: int) -> None:
    value = uniform(seed, position)
    assert 0 <= value < 1
    assert value == uniform(seed, position)


def test_neighbouring_seeds_and_positions_are_unrelated() -> None:
    values = [uniform(seed, position) for seed in range(50) for position in range(50)]
    assert len(set(values)) == len(values)
    assert sum(values) / len(values) == pytest.approx(0.5, abs=0.02)


def plainly(row: torch.Tensor, options: Sampling, position: int) -> int:
    """The definition, step by step over the whole sorted vocabulary."""
    probabilities = (row / options.temperature).softmax(dim=-1)
    values, ids = probabilities.sort(descending=True, stable=True)
    kept = [(float(p), int(t)) for p, t in zip(values, ids, strict=True)][: options.top_k or None]
    total = sum(p for p, _ in kept) if options.top_k else 1.0
    mass, best = 0.0, kept[0][0]
    left: list[tuple[float, int]] = []
    for p, token in kept:
        if left and (mass >= options.top_p * total or p < options.min_p * best):
            break
        left.append((p, token))
        mass += p
    target = uniform(options.seed, position) * sum(p for p, _ in left)
    for p, token in left:
        target -= p
        if target < 0:
            return token
    return left[-1][1]


@pytest.mark.parametrize("scale", [0.3, 3.0])
def test_the_short_way_over_the_best_tokens_equals_the_definition(scale: float) -> None:
    """Flat distributions, where 256 candidates are not enough, and steep ones, with many equal values."""
    rng = random.Random(4)
    generator = torch.Generator().manual_seed(4)
    values = (torch.randn(200, 2000, generator=generator) * scale * 8).round() / 8
    rows = []
    for i in range(200):
        top_k, top_p, min_p = rng.choice([0, 1, 5, 300]), rng.choice([1.0, 0.9, 0.3]), rng.choice([0.0, 0.05])
        if not top_k and top_p == 1.0 and not min_p:
            top_k = 40
        rows.append(SampleRow(Sampling(temperature=0.8, top_k=top_k, top_p=top_p, min_p=min_p, seed=i), i))
    together = chosen(values.clone(), rows)
    expected = [plainly(values[i], row.sampling, row.position) for i, row in enumerate(rows)]
    # Sums in another order may round to the neighbour once in a while; never systematically.
    assert sum(a != b for a, b in zip(together, expected, strict=True)) <= 2
    assert together == [chosen(values[i : i + 1].clone(), [row])[0] for i, row in enumerate(rows)]


def test_penalties_equal_their_definition() -> None:
    values = torch.tensor([[2.0, -1.0, 0.5, 3.0, 1.0]])
    counts = TokenCounts(5, [0, 1])
    for token in (3, 3, 2):
        counts.add(token)
    options = Sampling(repetition_penalty=2.0, presence_penalty=0.25, frequency_penalty=0.5, logit_bias={4: -3.0})
    sample(values, [SampleRow(options, 0, counts=counts)])
    expected = [1.0, -2.0, 0.25 - 0.25 - 0.5, 1.5 - 0.25 - 1.0, -2.0]
    assert values[0].tolist() == pytest.approx(expected)


def test_rows_after_drafted_tokens_count_them() -> None:
    one, other = torch.zeros(1, 5), torch.zeros(1, 5)
    options = Sampling(presence_penalty=0.5, frequency_penalty=0.25)
    counts, more = TokenCounts(5, []), TokenCounts(5, [])
    sample(one, [SampleRow(options, 2, counts=counts, drafted=(1, 1, 3))])
    for token in (1, 1, 3):
        more.add(token)
    sample(other, [SampleRow(options, 2, counts=more)])
    assert one.tolist() == other.tolist()
    assert counts.generated.sum() == 0


def test_logprobs_are_those_of_the_model_before_anything_else() -> None:
    options = Sampling(temperature=0.5, top_k=1, logit_bias={0: 5.0})
    (token,) = sample(logits(), [SampleRow(options, 0, top_logprobs=2)]).read()
    assert token.token == 0
    assert token.logprobs is not None
    assert token.logprobs.chosen == pytest.approx(math.log(0.1))
    assert [t for t, _ in token.logprobs.top] == [1, 3]
    assert [p for _, p in token.logprobs.top] == pytest.approx([math.log(0.4), math.log(0.25)])


def test_only_rows_that_asked_get_logprobs() -> None:
    rows = [
        SampleRow(Sampling(), 0),
        SampleRow(Sampling(), 0, top_logprobs=0),
        SampleRow(Sampling(), 0, top_logprobs=3),
    ]
    read = sample(logits(3), rows).read()
    assert read[0].logprobs is None
    assert read[1].logprobs is not None
    assert read[1].logprobs.top == []
    assert read[2].logprobs is not None
    assert len(read[2].logprobs.top) == 3


def test_a_row_that_is_not_numbers_fails_alone() -> None:
    values = logits(3)
    values[1, 2] = math.nan
    rows = [SampleRow(Sampling(temperature=1.0, top_p=0.9), i) for i in range(3)]
    read = sample(values, rows).read()
    assert [token.failed for token in read] == [False, True, False]


def test_masks_win_over_bias() -> None:
    bitmask = xgrammar.allocate_token_bitmask(1, 5)
    bitmask[0, 0] = 0b00100
    rows = [SampleRow(Sampling(logit_bias={1: 100.0}), 0)]
    assert [t.token for t in sample(logits(), rows, bitmask).read()] == [2]


@given(st.lists(st.integers(0, 2), min_size=1, max_size=8), st.lists(st.integers(0, 2), max_size=7))
def test_verified_drafts_are_the_longest_common_prefix(sampled: list[int], draft: list[int]) -> None:
    draft = draft[: len(sampled) - 1]
    accepted = verify(sampled, draft)
    assert sampled[:accepted] == draft[:accepted]
    assert accepted == len(draft) or sampled[accepted] != draft[accepted]


def test_equal_logprobs_stand_in_the_order_of_their_ids() -> None:
    """Against the definition, on values as coarse as bf16 logits, many of them equal at the border too."""
    generator = torch.Generator().manual_seed(2)
    values = torch.randint(0, 6, (40, 700), generator=generator) / 4
    expected = values.log_softmax(dim=-1).sort(dim=-1, descending=True, stable=True)
    rows = [SampleRow(Sampling(), i, top_logprobs=1 + i % 20) for i in range(40)]
    for i, token in enumerate(sample(values.clone(), rows).read()):
        assert token.logprobs is not None
        assert [t for t, _ in token.logprobs.top] == expected.indices[i, : 1 + i % 20].tolist()
        assert [p for _, p in token.logprobs.top] == expected.values[i, : 1 + i % 20].tolist()
        assert token.logprobs.top[0] == (token.token, token.logprobs.chosen)
