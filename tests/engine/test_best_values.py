"""The best values of a row against a stable sort of all of it."""

from __future__ import annotations

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.model.best_values import best_values

VALUES = st.sampled_from([-math.inf, -2.5, -1.0, -1e-40, -0.0, 0.0, 1e-40, 0.5, 1.0, 3.0, math.inf])


@given(st.lists(st.lists(VALUES, min_size=7, max_size=7), min_size=1, max_size=4), st.integers(1, 7))
def test_it_is_the_beginning_of_a_stable_sort(rows: list[list[float]], count: int) -> None:
    values = torch.tensor(rows)
    expected = values.sort(dim=-1, descending=True, stable=True)
    found, places = best_values(values, count)
    assert torch.equal(places, expected.indices[:, :count])
    assert torch.equal(found, expected.values[:, :count])


def test_wide_rows_with_many_equal_values() -> None:
    values = torch.randint(-40, 40, (3, 50_000), generator=torch.Generator().manual_seed(1)) / 8
    expected = values.sort(dim=-1, descending=True, stable=True)
    for count in (1, 20, 4096, 50_000):
        found, places = best_values(values, count)
        assert torch.equal(places, expected.indices[:, :count])
        assert torch.equal(found, expected.values[:, :count])


def test_values_that_are_not_numbers_come_first() -> None:
    assert best_values(torch.tensor([[1.0, math.nan, math.inf]]), 3)[1].tolist() == [[1, 2, 0]]
