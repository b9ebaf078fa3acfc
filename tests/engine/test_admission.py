"""Who is refused when the engine is full."""

from __future__ import annotations

import pytest

from engine.admission import Admission, Overloaded
from engine.context import Context
from engine.kv.blocks import BlockPool
from engine.messages import Priority

ADMISSION = Admission(max_contexts=3, max_waiting=2, max_waiting_tokens=100)


def waiting(tokens: int, priority: Priority = "foreground") -> Context:
    context = Context(1, BlockPool(8, 4), priority)
    context.append([0] * tokens)
    return context


def test_contexts_are_counted() -> None:
    ADMISSION.check_open(2)
    with pytest.raises(Overloaded, match="all 3 contexts"):
        ADMISSION.check_open(3)


def test_generations_before_their_first_token_are_counted() -> None:
    ADMISSION.check_generate([waiting(10)], 10)
    with pytest.raises(Overloaded, match="the limit is 2"):
        ADMISSION.check_generate([waiting(10), waiting(10)], 10)


def test_prompt_tokens_are_counted() -> None:
    ADMISSION.check_generate([waiting(50)], 50)
    with pytest.raises(Overloaded, match="101 prompt tokens"):
        ADMISSION.check_generate([waiting(50)], 51)


def test_the_first_may_be_as_long_as_it_likes() -> None:
    ADMISSION.check_generate([], 1000)


def test_background_work_does_not_count() -> None:
    ADMISSION.check_generate([waiting(90, "background") for _ in range(10)], 90)
