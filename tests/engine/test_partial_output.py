"""Output of a tool that is read while the tool still runs: the answer is the one that the result alone would give."""

from __future__ import annotations

from typing import Any

import pytest

from engine import messages as m
from engine.interception.policies.static import ImprovedDiscard, Preserve, Swap
from engine.interception.policy import Policy
from tests.engine.driver import Driver, make_driver, reference_greedy

PROMPT = [5, 17, 3, 88, 41, 9, 9, 30, 2, 64, 71, 12, 50]
OUTPUT = [33, 8, 21, 60, 60, 7, 15, 44, 90, 3]
RESULTS = [OUTPUT + [4], OUTPUT, OUTPUT[:4], [*OUTPUT[:4], 71, 72], [1, 2, 3]]
PLACES: list[tuple[Policy | None, int]] = [(None, 0), (Preserve(), 0), (ImprovedDiscard(), 0), (Swap(), 64)]


def held(tiny: Any, policy: Policy | None, host_blocks: int) -> tuple[Driver, list[int]]:
    """A context that has answered and waits for a tool; and its tokens."""
    driver = make_driver(tiny, policy=policy, host_blocks=host_blocks)
    params = m.GenerateParams(9)
    driver.apply(m.Open(1, "foreground"), m.Append(1, PROMPT), m.Generate(1, 10, params))
    driver.run()
    driver.apply(m.Hold(1, "tool", call="call", tool="search", argument_class="query/3"))
    return driver, driver.held_tokens(1)[:]


@pytest.mark.parametrize("steps", [0, 1, 100])
@pytest.mark.parametrize("result", RESULTS)
@pytest.mark.parametrize(("policy", "host_blocks"), PLACES)
def test_the_answer_is_that_of_the_result_alone(
    tiny: Any, tiny_reference: Any, policy: Policy | None, host_blocks: int, result: list[int], steps: int
) -> None:
    driver, before = held(tiny, policy, host_blocks)
    for token in OUTPUT:
        driver.apply(m.Append(1, [token]))
        for _ in range(steps):
            if driver.core.has_work:
                driver.step()
    common = next((i for i, (a, b) in enumerate(zip(OUTPUT, result, strict=False)) if a != b), len(OUTPUT))
    common = min(common, len(result))
    driver.apply(m.ToolEvent(1, "call", "finished"), m.Truncate(1, len(before) + common))
    driver.apply(m.Resume(1, result[common:], 11, m.GenerateParams(9)))
    driver.run()
    assert driver.tokens_of(11) == reference_greedy(tiny_reference, before + result, 9)


def test_what_was_read_is_not_computed_again(tiny: Any) -> None:
    driver, before = held(tiny, Preserve(), 0)
    driver.apply(m.Append(1, OUTPUT))
    driver.run()
    assert driver.of_kind(m.Prefilled)[-1].kv_tokens == len(before) + len(OUTPUT)
    driver.apply(m.Resume(1, [4], 11, m.GenerateParams(3)))
    driver.run()
    assert driver.finished(11).cached_tokens == len(before) + len(OUTPUT)
