"""Holds are soft: what any policy gives up when work waits for memory that it would rather keep."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from engine.interception.policy import Decision, Held, Load


def relieve(
    decisions: Sequence[Decision], held: Sequence[Held], load: Load, rank: Callable[[Held], float]
) -> list[Decision]:
    """`decisions`, and drops in addition that cover what is missing: of the lowest `rank` first, from the head on."""
    by_context = {decision.context: decision for decision in decisions}
    missing = load.waiting_tokens - load.free_tokens - load.leaving_tokens
    missing -= sum(decision.drop_tokens + decision.swap_tokens for decision in decisions)
    for one in sorted(held, key=rank) if missing > 0 else ():
        if missing <= 0:
            break
        old = by_context.get(one.id, Decision(one.id))
        more = min(one.device_tokens - old.drop_tokens - old.swap_tokens, missing)
        if more > 0:
            by_context[one.id] = Decision(one.id, old.drop_tokens + more, old.swap_tokens)
            missing -= more
    return list(by_context.values())


def longest(one: Held) -> float:
    """Rank: what has waited for the longest goes first."""
    return -one.elapsed_s
