"""Policies by name."""

from __future__ import annotations

from collections.abc import Callable

from engine.interception.policies.continuum import Continuum
from engine.interception.policies.infercept import InferCept, Oracle
from engine.interception.policies.mars import Mars
from engine.interception.policies.ours import Ours
from engine.interception.policies.static import Discard, Heuristic, ImprovedDiscard, Preserve, Swap
from engine.interception.policy import Policy, Timing

POLICIES: dict[str, Callable[[Timing], Policy]] = {
    Discard.name: lambda timing: Discard(),
    ImprovedDiscard.name: lambda timing: ImprovedDiscard(),
    Preserve.name: lambda timing: Preserve(),
    Swap.name: lambda timing: Swap(),
    Heuristic.name: lambda timing: Heuristic(),
    InferCept.name: InferCept,
    Oracle.name: Oracle,
    Continuum.name: Continuum,
    Mars.name: Mars,
    Ours.name: Ours,
}
