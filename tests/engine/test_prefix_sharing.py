"""Contexts that begin with the same text share what one of them has computed."""

from __future__ import annotations

from typing import Any

from engine import messages as m
from tests.engine.driver import make_driver, reference_greedy

PROMPT = [5, 17, 3, 88, 41, 9, 9, 30, 2, 64, 71, 12, 50]
OTHER = [90, 1, 33, 33, 7, 21, 80]


def computed(items: list[m.Item], context: int) -> int:
    return sum(item.computed for item in items if isinstance(item, m.Prefilled) and item.context == context)


def test_a_second_context_with_the_same_prompt_computes_only_its_last_token(tiny: Any, tiny_reference: Any) -> None:
    driver = make_driver(tiny)
    expected = reference_greedy(tiny_reference, PROMPT, 10)
    for context in (1, 2):
        driver.apply(m.Open(context, "foreground"), m.Append(context, PROMPT))
        driver.apply(m.Generate(context, context, m.GenerateParams(10)))
        driver.run()
        assert driver.tokens_of(context) == expected
    assert driver.finished(1).cached_tokens == 0
    assert computed(driver.items, 2) == 1
    assert driver.finished(2).cached_tokens == len(PROMPT)


def test_a_hit_ends_at_the_token_where_the_texts_part(tiny: Any, tiny_reference: Any) -> None:
    """Inside a block: what two texts share is not rounded down to whole blocks."""
    driver = make_driver(tiny)
    driver.apply(m.Open(1, "background"), m.Append(1, PROMPT))
    driver.run()
    text = PROMPT[:10] + OTHER
    driver.apply(m.Open(2, "foreground"), m.Append(2, text), m.Generate(2, 20, m.GenerateParams(10)))
    driver.run()
    assert driver.finished(20).cached_tokens == 10
    assert driver.tokens_of(20) == reference_greedy(tiny_reference, text, 10)


def test_text_of_a_closed_context_is_found_until_its_memory_is_needed(tiny: Any) -> None:
    driver = make_driver(tiny, blocks=16)
    driver.apply(m.Open(1, "background"), m.Append(1, PROMPT))
    driver.run()
    driver.apply(m.Close(1), m.Open(2, "background"), m.Append(2, PROMPT))
    driver.run()
    assert driver.core.counters.prefix_hit_tokens == 12
    driver.apply(m.Close(2), m.Open(3, "foreground"), m.Append(3, [7] * 60), m.Generate(3, 30, m.GenerateParams(2)))
    driver.run()
    driver.apply(m.Close(3), m.Open(4, "background"), m.Append(4, PROMPT))
    driver.run()
    assert driver.core.counters.prefix_hit_tokens == 12


def test_speculation_edited_over_a_block_border_never_reaches_another_context(tiny: Any, tiny_reference: Any) -> None:
    """A draft is thought about, its text edited, and a second session sends the old text: it must equal a cold run."""
    driver = make_driver(tiny)
    driver.apply(m.Open(1, "background"), m.Append(1, PROMPT), m.Fork(1, 2, "background"))
    driver.apply(m.Generate(2, 20, m.GenerateParams(6)))
    driver.run()
    driver.apply(m.Close(2), m.Truncate(1, 6), m.Append(1, OTHER))
    driver.run()
    for context, text in ((3, PROMPT), (4, PROMPT[:6] + OTHER), (5, PROMPT + driver.tokens_of(20))):
        driver.apply(m.Open(context, "foreground"), m.Append(context, text))
        driver.apply(m.Generate(context, context * 10, m.GenerateParams(10)))
        driver.run()
        assert driver.finished(context * 10).cached_tokens > 0
        assert driver.tokens_of(context * 10) == reference_greedy(tiny_reference, text, 10)


def test_undo_finds_the_text_as_it_was(tiny: Any) -> None:
    driver = make_driver(tiny)
    driver.apply(m.Open(1, "background"), m.Append(1, PROMPT))
    driver.run()
    driver.apply(m.Truncate(1, 2), m.Append(1, OTHER))
    driver.run()
    driver.items.clear()
    driver.apply(m.Truncate(1, 2), m.Append(1, PROMPT[2:]))
    driver.run()
    assert computed(driver.items, 1) == 1


def test_many_sessions_with_one_system_prompt_hold_it_once(tiny: Any) -> None:
    driver = make_driver(tiny)
    for context in range(8):
        driver.apply(m.Open(context, "background"), m.Append(context, [*PROMPT[:12], context]))
    driver.run()
    used = 256 - driver.core.stats().blocks_free
    assert used == 3 + 8
