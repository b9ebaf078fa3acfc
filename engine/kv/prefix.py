"""Which block holds which text: the index behind prefix sharing.

A full block is *keyed* by what it holds: the block before it and its own tokens. Blocks so form a tree from the start
of the text, and a match is a walk from the root that ends at the first gap, whatever is cached behind it. Keys are
compared, not only hashed, so a match is always the same text.
"""

from __future__ import annotations

from bisect import bisect_left, insort

ROOT = 0
"""The uid before the first block."""

Key = tuple[int, tuple[int, ...]]
"""(uid of the block before, or `ROOT`; tokens)."""


class PrefixIndex:
    """Keys of up to `blocks` blocks. A uid stands for one keyed text and is never used again."""

    def __init__(self, blocks: int) -> None:
        self._block_by_key: dict[Key, int] = {}
        self._keys: list[Key | None] = [None] * blocks
        self._uids = [ROOT] * blocks
        self._last_uid = ROOT
        # Sorted: whoever shares the most tokens with a text stands beside the place where the text would go.
        self._children: dict[int, list[tuple[int, ...]]] = {}

    def __len__(self) -> int:
        return len(self._block_by_key)

    def uid(self, block: int) -> int:
        """The uid of a keyed block; `ROOT`, which is false, for any other."""
        return self._uids[block]

    def key(self, block: int) -> Key | None:
        """What a keyed block holds; None for any other."""
        return self._keys[block]

    def children(self, block: int) -> list[int]:
        """The keyed blocks right behind a keyed block."""
        uid = self._uids[block]
        return [self._block_by_key[uid, tokens] for tokens in self._children.get(uid, [])] if uid else []

    def find(self, parent: int, tokens: tuple[int, ...]) -> int | None:
        """The block that holds exactly `tokens` behind the block with uid `parent`."""
        return self._block_by_key.get((parent, tokens))

    def longest(self, parent: int, tokens: tuple[int, ...]) -> tuple[int, int]:
        """The block behind `parent` that shares the most leading tokens with `tokens`, and how many; (-1, 0): none."""
        whole = self.find(parent, tokens)
        if whole is not None:
            return whole, len(tokens)
        siblings = self._children.get(parent, [])
        place = bisect_left(siblings, tokens)
        best: tuple[int, ...] = ()
        length = 0
        for sibling in siblings[max(place - 1, 0) : place + 1]:
            common = _common(sibling, tokens)
            if common > length:
                best, length = sibling, common
        return (self._block_by_key[parent, best], length) if length else (-1, 0)

    def add(self, block: int, parent: int, tokens: tuple[int, ...]) -> None:
        """Keys a block that has no key yet, with a key that no block has."""
        key = (parent, tokens)
        assert self._keys[block] is None, f"block {block} has a key"
        assert key not in self._block_by_key, f"the key of block {block} is taken"
        self._last_uid += 1
        self._block_by_key[key] = block
        self._keys[block] = key
        self._uids[block] = self._last_uid
        insort(self._children.setdefault(parent, []), tokens)

    def remove(self, block: int) -> None:
        """Takes the key of a keyed block, which then may hold anything."""
        key = self._keys[block]
        assert key is not None, f"block {block} is not keyed"
        del self._block_by_key[key]
        self._keys[block] = None
        self._uids[block] = ROOT
        parent, tokens = key
        siblings = self._children[parent]
        del siblings[bisect_left(siblings, tokens)]
        if not siblings:
            del self._children[parent]

    def check_integrity(self) -> None:
        """Asserts that the maps agree and that every keyed block can be reached from the root."""
        keyed = {block: key for block, key in enumerate(self._keys) if key is not None}
        assert self._block_by_key == {key: block for block, key in keyed.items()}, "keys and blocks differ"
        uids = [uid for uid in self._uids if uid]
        assert len(set(uids)) == len(uids) == len(keyed), "uids differ from keyed blocks"
        assert all(self._uids[block] for block in keyed)
        assert {parent for parent, _ in keyed.values()} <= {ROOT, *uids}, "the block before a keyed one has no key"
        children: dict[int, list[tuple[int, ...]]] = {}
        for parent, tokens in sorted(keyed.values()):
            children.setdefault(parent, []).append(tokens)
        assert self._children == children, "children differ from keys"


def _common(first: tuple[int, ...], second: tuple[int, ...]) -> int:
    for length, (one, other) in enumerate(zip(first, second, strict=False)):
        if one != other:
            return length
    return min(len(first), len(second))
