"""What is compared: a strategy of the server together with what the model is told to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

# In the paper the baseline reasons step by step and the answer after notes is to be direct if it can be (LiveMind,
# arXiv 2406.14319). How long an answer is told to be matters as much as when it was begun: hence the controls.
_STEPS = "You are a helpful assistant. Think step by step, and end with: The answer is {form}."
_DIRECT = "You are a helpful assistant. Do not explain anything. Reply only with: The answer is {form}."
_NOTED = (
    "You are a helpful assistant. Use what was noted before about the problem. If it is enough, answer at once, else "
    "reason briefly. End with: The answer is {form}."
)
_NUMBER_FORM = "N, where N is a number"
_CHOICE_FORM = "(X), where X is the letter of the option"
_KINDS = {
    "off-cot": ("off", _STEPS),
    "off-direct": ("off", _DIRECT),
    "off-notes": ("off", _NOTED),
    "prefill": ("prefill", _STEPS),
    "prefill-direct": ("prefill", _DIRECT),
    "draft": ("draft", _STEPS),
    "notes": ("notes", _NOTED),
    "notes-cot": ("notes", _STEPS),
    "auto": ("auto", _STEPS),
}
NAMES = tuple(_KINDS)
BASELINE = "off-cot"


@dataclass(frozen=True)
class Variant:
    """`layout` and `granularity` are those of the notes; None leaves them to the server."""

    name: str
    layout: str | None = None
    granularity: str | None = None

    @property
    def strategy(self) -> str:
        return _KINDS[self.name][0]

    @property
    def types(self) -> bool:
        """Whether the server gets to see the text before it is sent."""
        return self.strategy != "off"

    @property
    def label(self) -> str:
        return " ".join(part for part in (self.name, self.layout, self.granularity) if part)

    def instructions(self, letters: str) -> str:
        return _KINDS[self.name][1].format(form=_CHOICE_FORM if letters else _NUMBER_FORM)

    def midstream(self) -> dict[str, Any]:
        """The `midstream` part of the session."""
        given = {"strategy": self.strategy, "layout": self.layout, "granularity": self.granularity}
        return {name: value for name, value in given.items() if value is not None}


def variants(names: Sequence[str], layouts: Sequence[str], granularities: Sequence[str]) -> list[Variant]:
    """Every strategy once, and one that takes notes once for each layout and granularity. Raises `ValueError`."""
    for name in names:
        if name not in _KINDS:
            raise ValueError(f"no strategy {name!r}; there are {', '.join(NAMES)}")
    pairs = [(one, other) for one in layouts or (None,) for other in granularities or (None,)]
    found: list[Variant] = []
    for name in dict.fromkeys(names):
        if _KINDS[name][0] == "notes":
            found += [Variant(name, layout, granularity) for layout, granularity in pairs]
        else:
            found.append(Variant(name))
    return found
