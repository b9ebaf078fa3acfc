"""The index of keyed blocks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.kv.prefix import ROOT, PrefixIndex

texts = st.lists(st.tuples(*[st.integers(0, 2)] * 4), unique=True, max_size=30)


def test_a_block_is_found_by_its_text_behind_its_parent() -> None:
    index = PrefixIndex(4)
    index.add(0, ROOT, (1, 2))
    index.add(1, index.uid(0), (1, 2))
    assert index.find(ROOT, (1, 2)) == 0
    assert index.find(index.uid(0), (1, 2)) == 1
    assert index.find(index.uid(1), (1, 2)) is None
    index.check_integrity()


@given(texts, st.lists(st.integers(0, 2), min_size=1, max_size=4).map(tuple))
def test_the_longest_match_is_what_a_scan_finds(siblings: list[tuple[int, ...]], wanted: tuple[int, ...]) -> None:
    def common(block: int) -> int:
        pairs = zip(siblings[block], wanted, strict=False)
        return next((i for i, (one, other) in enumerate(pairs) if one != other), len(wanted))

    index = PrefixIndex(30)
    for block, tokens in enumerate(siblings):
        index.add(block, ROOT, tokens)
    best = max(map(common, range(len(siblings))), default=0)
    block, length = index.longest(ROOT, wanted)
    assert length == best
    assert block == -1 if not best else common(block) == best


@given(texts)
def test_removing_leaves_nothing_behind(siblings: list[tuple[int, ...]]) -> None:
    index = PrefixIndex(30)
    for block, tokens in enumerate(siblings):
        index.add(block, ROOT, tokens)
    for block, tokens in enumerate(siblings):
        index.remove(block)
        index.check_integrity()
        assert index.find(ROOT, tokens) is None
        assert not index.uid(block)
    assert len(index) == 0


def test_a_uid_is_never_used_again() -> None:
    """Else a block could be found behind the wrong text: behind the one whose uid its parent got later."""
    index = PrefixIndex(2)
    seen = set()
    for _ in range(50):
        index.add(0, ROOT, (1, 2))
        seen.add(index.uid(0))
        index.remove(0)
    assert len(seen) == 50


def test_two_keys_for_a_block_and_two_blocks_for_a_key_are_errors() -> None:
    index = PrefixIndex(2)
    index.add(0, ROOT, (1, 2))
    with pytest.raises(AssertionError):
        index.add(0, ROOT, (3, 4))
    with pytest.raises(AssertionError):
        index.add(1, ROOT, (1, 2))


def test_a_block_that_cannot_be_reached_is_noticed() -> None:
    index = PrefixIndex(2)
    index.add(0, ROOT, (1, 2))
    index.add(1, index.uid(0), (3, 4))
    index.remove(0)
    with pytest.raises(AssertionError):
        index.check_integrity()
