"""Who is refused when the engine is full."""

from __future__ import annotations

import pytest

from engine.admission import Admission, Overloaded
from engine.context import Context
from engine.generation import Generation
from engine.kv.blocks import BlockPool
from engine.messages import GenerateParams, Priority

ADMISSION = Admission(max_contexts=3, max_waiting=2, max_waiting_tokens=100)


def waiting(tokens: int, priority: Priority = "foreground", *, said: int = 0, held: bool = False) -> Context:
    context = Context(1, BlockPool(8, 4), priority, held=held)
    context.append([0] * tokens)
    context.generation = Generation(1, GenerateParams(9), 9, frozenset(), tokens, 0, 0.0, output_tokens=said)
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


def test_held_contexts_do_not_count() -> None:
    ADMISSION.check_generate([waiting(90, held=True) for _ in range(10)], 90)


def test_who_has_begun_to_speak_or_only_reads_does_not_count() -> None:
    reader = Context(1, BlockPool(8, 4), "foreground")
    reader.append([0] * 90)
    ADMISSION.check_generate([waiting(90, said=1), waiting(90, said=1), reader], 90)
