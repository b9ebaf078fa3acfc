"""What holding, dropping or moving KV wastes, in token-seconds: memory that is held without doing useful work, times
time, of the held context and of the bystanders that it delays (InferCept, section 3 and 4; its factor M, the bytes of a
token, is left out)."""

from __future__ import annotations

import math

from engine.interception.policy import Timing


def preserve(tokens: float, seconds: float) -> float:
    """W_P, eq. 2: kept on the device for `seconds`."""
    return tokens * seconds


def discard(timing: Timing, tokens: int, others: int) -> float:
    """W_D, eq. 1: dropped, and computed again in one step, for which `others` wait."""
    seconds = timing.forward_s(tokens, tokens)
    return seconds * tokens + seconds * others


def swap(timing: Timing, tokens: int, batch: int) -> float:
    """W_S, eq. 3: moved out and in at once, each of which all tokens of the `batch` wait for."""
    return 2 * timing.swap_s(tokens) * batch


def chunks(timing: Timing, tokens: int, queries: int) -> tuple[int, int]:
    """How `tokens` are computed again beside `queries`: tokens a step, up to saturation, and steps."""
    chunk = max(timing.saturation_tokens - queries, 1)
    return chunk, math.ceil(tokens / chunk)


def chunked_discard(timing: Timing, tokens: int, queries: int, others: int) -> float:
    """W_CD, eq. 4: dropped, and computed again in chunks beside `queries` running ones of `others` tokens. Own memory
    grows with the chunks, so half of it is held on average. The paper lets bystanders wait for the whole steps."""
    if tokens <= 0:
        return 0.0
    chunk, steps = chunks(timing, tokens, queries)
    part = min(chunk, tokens)
    return timing.forward_s(tokens, tokens) * tokens / 2 + steps * timing.forward_s(part, part) * others


def marginal_discard(timing: Timing, tokens: int, queries: int, others: int, queue_s: float = 0.0) -> float:
    """W_CD as the published code has it: bystanders, which run in those steps anyway, wait only for what the chunks add
    to them. `queue_s` is how long a context that comes back without its KV waits until it is computed (the term of
    Continuum): as long again its request is late, which is priced like memory held that long."""
    if tokens <= 0:
        return 0.0
    chunk, steps = chunks(timing, tokens, queries)
    part = min(chunk, tokens)
    step_s = timing.forward_s(queries + part, others + tokens)
    added_s = max(step_s - timing.forward_s(queries, others), 0.0) * tokens / part
    return steps * step_s * tokens / 2 + added_s * others + queue_s * tokens


def least(timing: Timing, tokens: int, seconds: float, queries: int, others: int) -> float:
    """Eq. 5: the lesser waste of keeping and dropping."""
    return min(preserve(tokens, seconds), marginal_discard(timing, tokens, queries, others))


def break_even_s(timing: Timing, tokens: int, queries: int, others: int, queue_s: float = 0.0) -> float:
    """The pause beyond which dropping wastes less than keeping."""
    return marginal_discard(timing, tokens, queries, others, queue_s) / tokens if tokens > 0 else 0.0
