"""The next step may be under way before the tokens of the last are read; what it computed for nobody is dropped."""

from __future__ import annotations

import random
from typing import Any

import pytest

from engine import messages as m
from tests.engine.driver import Driver, make_driver, reference_greedy

PROMPT = [5, 17, 3, 88, 41, 9, 9, 30, 2, 64, 71, 12, 50]


def ahead_driver(tiny: Any, **options: Any) -> Driver:
    return make_driver(tiny, run_ahead=True, speculate=False, **options)


def test_decodes_run_ahead_and_equal_generate(tiny: Any, tiny_reference: Any) -> None:
    driver = ahead_driver(tiny)
    for context in range(4):
        driver.apply(m.Open(context, "foreground"), m.Append(context, PROMPT[context:]))
        driver.apply(m.Generate(context, context, m.GenerateParams(10 + 5 * context)))
    ran_ahead = 0
    while driver.core.has_work:
        driver.step()
        ran_ahead += bool(driver.core._ahead)
    assert ran_ahead > 10
    for context in range(4):
        assert driver.tokens_of(context) == reference_greedy(tiny_reference, PROMPT[context:], 10 + 5 * context)


def test_a_stop_token_drops_what_ran_ahead(tiny: Any, tiny_reference: Any) -> None:
    plain = reference_greedy(tiny_reference, PROMPT, 30)
    stop = plain[7]
    driver = ahead_driver(tiny)
    driver.apply(m.Open(1, "foreground"), m.Append(1, PROMPT))
    driver.apply(m.Generate(1, 10, m.GenerateParams(30, stop_token_ids=[stop])))
    driver.run()
    said = plain[: plain.index(stop)]
    assert driver.held_tokens(1) == PROMPT + said
    driver.apply(m.Append(1, [4, 4, 8]), m.Generate(1, 11, m.GenerateParams(10)))
    driver.run()
    assert driver.tokens_of(11) == reference_greedy(tiny_reference, [*PROMPT, *said, 4, 4, 8], 10)


@pytest.mark.parametrize("seed", range(5))
def test_commands_between_launch_and_read_leave_every_context_right(tiny: Any, tiny_reference: Any, seed: int) -> None:
    """Cancels, edits, forks and closings while a step is under way, in a pool so small that blocks change hands."""
    rng = random.Random(seed)
    driver = ahead_driver(tiny, blocks=40)
    texts: dict[int, list[int]] = {}
    generation = 0
    for context in range(3):
        driver.apply(m.Open(context, "foreground"), m.Append(context, PROMPT[context:]))
    for _ in range(120):
        context = rng.randrange(3)
        state = driver.core._contexts[context]
        if state.generation is None and len(state.tokens) < 60:
            generation += 1
            texts[generation] = list(state.tokens)
            driver.apply(m.Generate(context, generation, m.GenerateParams(rng.randrange(2, 12))))
        elif rng.random() < 0.3:
            driver.apply(
                m.Truncate(context, rng.randrange(5, len(state.tokens) + 1)), m.Append(context, [rng.randrange(96)])
            )
        elif rng.random() < 0.2:
            other = (context + 1) % 3
            driver.apply(m.Close(other), m.Fork(context, other, "foreground"))
        driver.step()
    driver.run()
    for number, text in texts.items():
        said = driver.tokens_of(number)
        assert said == reference_greedy(tiny_reference, text, 12)[: len(said)]


def test_nothing_runs_ahead_of_a_step_whose_context_was_edited_and_generates_again(
    tiny: Any, tiny_reference: Any
) -> None:
    driver = ahead_driver(tiny)
    driver.apply(m.Open(1, "foreground"), m.Append(1, PROMPT), m.Generate(1, 10, m.GenerateParams(30)))
    while not driver.core._ahead:
        driver.step()
    driver.apply(m.Truncate(1, 2), m.Generate(1, 11, m.GenerateParams(20)))
    driver.run()
    assert driver.tokens_of(11) == reference_greedy(tiny_reference, PROMPT[:2], 20)
