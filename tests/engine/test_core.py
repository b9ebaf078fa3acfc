"""The engine against transformers' own generate, with tiny random models in float32."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from engine import messages as m
from tests.engine.driver import Driver, load, load_reference, make_driver, reference_greedy

PROMPT = [5, 17, 3, 88, 41, 9, 9, 30, 2, 64, 71, 12, 50]
OTHER = [90, 1, 33, 33, 7, 21, 80]


def greedy(count: int, **options: Any) -> m.GenerateParams:
    return m.GenerateParams(max_tokens=count, **options)


def expect_failure(driver: Driver, command: m.Command, code: str) -> None:
    driver.items.clear()
    driver.apply(command)
    driver.run()
    assert [failure.code for failure in driver.of_kind(m.Failed)] == [code]


def test_cold_prompt_equals_generate(tiny_folder: Path) -> None:
    driver = make_driver(load(tiny_folder))
    driver.apply(m.Open(1, "foreground"), m.Append(1, PROMPT), m.Generate(1, 10, greedy(40)))
    driver.run()
    assert driver.tokens_of(10) == reference_greedy(load_reference(tiny_folder), PROMPT, 40)
    assert driver.held_tokens(1) == PROMPT + driver.tokens_of(10)
    assert driver.finished(10).reason == "length"


def test_many_contexts_in_one_step_equal_generate(tiny_folder: Path) -> None:
    driver, reference = make_driver(load(tiny_folder)), load_reference(tiny_folder)
    prompts = [PROMPT[i:] + OTHER[:i] for i in range(7)]
    for i, prompt in enumerate(prompts):
        priority: m.Priority = "background" if i % 2 else "foreground"
        driver.apply(m.Open(i, priority), m.Append(i, prompt), m.Generate(i, 100 + i, greedy(20)))
    driver.run()
    for i, prompt in enumerate(prompts):
        assert driver.tokens_of(100 + i) == reference_greedy(reference, prompt, 20)


@pytest.mark.parametrize("seed", range(4))
def test_random_pieces_and_edits_equal_generate(tiny: Any, tiny_reference: Any, seed: int) -> None:
    """Typed in pieces, with parts deleted and typed again, in steps smaller than the pieces."""
    rng = random.Random(seed)
    driver = make_driver(tiny, step_tokens=5)
    driver.apply(m.Open(1, "background"))
    text: list[int] = []
    for _ in range(25):
        if text and rng.random() < 0.4:
            text = text[: rng.randrange(len(text) + 1)]
            driver.apply(m.Truncate(1, len(text)))
        piece = [rng.randrange(96) for _ in range(rng.randrange(1, 12))]
        text = text + piece
        driver.apply(m.Append(1, piece))
        for _ in range(rng.randrange(3)):
            driver.step()
    driver.apply(m.SetPriority(1, "foreground"), m.Generate(1, 10, greedy(20)))
    driver.run()
    assert driver.tokens_of(10) == reference_greedy(tiny_reference, text, 20)


def test_prompt_that_is_all_in_kv_generates(tiny: Any, tiny_reference: Any) -> None:
    driver = make_driver(tiny)
    driver.apply(m.Open(1, "background"), m.Append(1, PROMPT))
    driver.run()
    driver.items.clear()
    driver.apply(m.Generate(1, 10, greedy(8)))
    driver.run()
    assert driver.tokens_of(10) == reference_greedy(tiny_reference, PROMPT, 8)
    assert driver.finished(10).cached_tokens == len(PROMPT)
    assert [(item.kv_tokens, item.computed) for item in driver.of_kind(m.Prefilled)] == [(len(PROMPT), 1)]


@pytest.mark.parametrize("fork_at", [1, 4, 6, 12])
def test_fork_shares_and_then_diverges(tiny: Any, tiny_reference: Any, fork_at: int) -> None:
    driver = make_driver(tiny)
    driver.apply(m.Open(1, "foreground"), m.Append(1, PROMPT))
    driver.run()
    driver.apply(m.Fork(1, 2, "background"), m.Truncate(2, fork_at), m.Append(2, OTHER))
    driver.apply(m.Generate(1, 10, greedy(12)), m.Generate(2, 20, greedy(12)))
    driver.run()
    assert driver.tokens_of(10) == reference_greedy(tiny_reference, PROMPT, 12)
    assert driver.tokens_of(20) == reference_greedy(tiny_reference, PROMPT[:fork_at] + OTHER, 12)


def test_fork_takes_no_blocks_until_one_side_writes(tiny: Any) -> None:
    driver = make_driver(tiny)
    driver.apply(m.Open(1, "foreground"), m.Append(1, PROMPT))
    driver.run()
    free = driver.core.stats().blocks_free
    driver.apply(*[m.Fork(1, child, "background") for child in range(2, 12)])
    driver.run()
    assert driver.core.stats().blocks_free == free
    driver.apply(*[m.Close(context) for context in range(1, 12)])
    assert driver.core.stats().blocks_free == 256


def test_hold_and_resume_equal_a_cold_run(tiny: Any, tiny_reference: Any) -> None:
    driver = make_driver(tiny)
    driver.apply(m.Open(1, "foreground"), m.Append(1, PROMPT), m.Generate(1, 10, greedy(9)))
    driver.run()
    before = driver.held_tokens(1)[:]
    driver.apply(m.Hold(1, "tool", 2.0))
    driver.run()
    moved = driver.of_kind(m.KvMoved)
    assert [(k.location, k.decision, k.reason, k.tokens) for k in moved] == [
        ("device", "preserve", "tool", len(before) - 1)
    ]
    assert driver.core.stats().blocks_held > 0
    driver.apply(m.Resume(1, OTHER, 11, greedy(9)))
    driver.run()
    assert driver.tokens_of(11) == reference_greedy(tiny_reference, before + OTHER, 9)
    assert driver.finished(11).cached_tokens == len(before) - 1


def test_tokens_appended_during_a_hold_are_prefilled(tiny: Any) -> None:
    driver = make_driver(tiny)
    driver.apply(m.Open(1, "foreground"), m.Append(1, PROMPT), m.Hold(1, "tool"), m.Append(1, OTHER))
    driver.run()
    assert driver.of_kind(m.Prefilled)[-1].kv_tokens == len(PROMPT) + len(OTHER)
    assert driver.core.stats().blocks_held > 0


def test_resume_keeps_its_place_in_the_queue(tiny: Any) -> None:
    driver = make_driver(tiny, step_tokens=4)
    driver.apply(m.Open(1, "foreground"), m.Append(1, OTHER))
    driver.run()
    driver.apply(m.Hold(1, "tool"))
    driver.apply(m.Open(2, "foreground"), m.Append(2, PROMPT * 3), m.Generate(2, 20, greedy(1)))
    driver.step()
    driver.apply(m.Resume(1, PROMPT * 3, 10, greedy(1)))
    driver.run()
    order = [item.generation for item in driver.of_kind(m.Finished)]
    assert order == [10, 20]


def test_memory_pressure_discards_and_recomputes(tiny: Any, tiny_reference: Any) -> None:
    """Six contexts of up to 40 tokens in a pool of 60: everything still comes out right."""
    driver = make_driver(tiny, blocks=15)
    prompts = [PROMPT[i:] + OTHER[:i] for i in range(6)]
    for i, prompt in enumerate(prompts):
        driver.apply(m.Open(i, "background" if i % 2 else "foreground"), m.Append(i, prompt))
        driver.apply(m.Generate(i, 100 + i, greedy(25)))
    driver.run()
    for i, prompt in enumerate(prompts):
        assert driver.tokens_of(100 + i) == reference_greedy(tiny_reference, prompt, 25)
    assert {moved.location for moved in driver.of_kind(m.KvMoved)} == {"none"}


def test_idle_and_held_contexts_never_block_admission(tiny: Any) -> None:
    driver = make_driver(tiny, blocks=16)
    for i in range(1, 5):
        driver.apply(m.Open(i, "background"), m.Append(i, [i, *PROMPT]))
        driver.run()
    driver.apply(m.Hold(1, "tool", 60.0), m.Hold(2, "idle"))
    driver.apply(m.Open(9, "foreground"), m.Append(9, PROMPT * 4), m.Generate(9, 90, greedy(4)))
    driver.run()
    assert driver.finished(90).reason == "length"
    lost = [moved.context for moved in driver.of_kind(m.KvMoved) if moved.location == "none"]
    # The one that ended just now may be about to be held too.
    assert lost == [3, 1, 2, 4]
    driver.apply(m.Resume(1, OTHER, 10, greedy(3)))
    driver.run()
    assert driver.finished(10).cached_tokens == 0
    assert driver.finished(10).output_tokens == 3


def test_a_context_as_large_as_the_pool_runs(tiny: Any) -> None:
    driver = make_driver(tiny, blocks=6)
    driver.apply(m.Open(1, "foreground"), m.Append(1, PROMPT), m.Fork(1, 2, "background"))
    driver.run()
    driver.apply(m.Generate(1, 10, greedy(99)), m.Generate(2, 20, greedy(99)))
    driver.run()
    assert len(driver.tokens_of(10)) == len(driver.tokens_of(20)) == 24 - len(PROMPT)


def test_cancel_takes_effect_before_the_next_step(tiny: Any) -> None:
    driver = make_driver(tiny)
    driver.apply(m.Open(1, "foreground"), m.Append(1, PROMPT), m.Generate(1, 10, greedy(400)))
    for _ in range(5):
        driver.step()
    seen = driver.tokens_of(10)
    driver.apply(m.Cancel(1))
    driver.step()
    assert driver.tokens_of(10) == seen
    assert driver.finished(10).reason == "cancelled"
    assert driver.held_tokens(1) == PROMPT + seen
    assert not driver.core.has_work


def test_cancel_stops_prefill(tiny: Any) -> None:
    driver = make_driver(tiny, step_tokens=4)
    driver.apply(m.Open(1, "foreground"), m.Append(1, PROMPT * 8))
    driver.step()
    driver.apply(m.Cancel(1))
    assert not driver.core.has_work


def test_stop_tokens_are_neither_emitted_nor_kept(tiny: Any, tiny_reference: Any) -> None:
    free_run = reference_greedy(tiny_reference, PROMPT, 30)
    stop = free_run[7]
    driver = make_driver(tiny)
    driver.apply(m.Open(1, "foreground"), m.Append(1, PROMPT))
    driver.apply(m.Generate(1, 10, greedy(30, stop_token_ids=[stop])))
    driver.run()
    expected = free_run[: free_run.index(stop)]
    assert driver.tokens_of(10) == expected
    assert driver.held_tokens(1) == PROMPT + expected
    assert driver.finished(10).reason == "stop"


def test_sampling_does_not_depend_on_the_batch(tiny: Any) -> None:
    sampling = m.Sampling(temperature=1.2, top_p=0.95, top_k=40, min_p=0.01, seed=42)
    alone, crowded = make_driver(tiny), make_driver(tiny)
    crowd: list[m.Command] = [m.Open(9, "foreground"), m.Append(9, OTHER), m.Generate(9, 90, greedy(30))]
    wanted: list[m.Command] = [
        m.Open(1, "foreground"),
        m.Append(1, PROMPT),
        m.Generate(1, 10, greedy(20, sampling=sampling)),
    ]
    alone.apply(*wanted)
    crowded.apply(*crowd, *wanted)
    alone.run()
    crowded.run()
    assert alone.tokens_of(10) == crowded.tokens_of(10)


def test_finished_says_when_and_how_much(tiny: Any) -> None:
    driver = make_driver(tiny)
    driver.apply(m.Open(1, "background"), m.Append(1, PROMPT))
    driver.run()
    driver.apply(m.Append(1, OTHER), m.Generate(1, 10, greedy(5)))
    driver.run()
    finished = driver.finished(10)
    assert (finished.prompt_tokens, finished.cached_tokens, finished.output_tokens) == (20, 13, 5)
    assert 0 < finished.received_at <= finished.first_scheduled_at <= finished.first_token_at


def test_refused_commands_change_nothing(tiny: Any) -> None:
    driver = make_driver(tiny, max_contexts=2)
    driver.apply(m.Open(1, "foreground"))
    expect_failure(driver, m.Open(1, "foreground"), "invalid_value")
    expect_failure(driver, m.Generate(1, 10, greedy(5)), "invalid_value")
    driver.apply(m.Append(1, PROMPT))
    driver.run()
    for command in (
        m.Append(7, PROMPT),
        m.Append(1, [96]),
        m.Append(1, [-1]),
        m.Append(1, [1 << 40]),
        m.Truncate(1, -1),
        m.Truncate(1, len(PROMPT) + 1),
        m.Resume(1, OTHER),
        m.Generate(1, 10, greedy(0)),
        m.Generate(1, 10, greedy(5, sampling=m.Sampling(temperature=float("nan")))),
        m.Generate(1, 10, greedy(5, sampling=m.Sampling(temperature=-1.0))),
        m.Generate(1, 10, greedy(5, sampling=m.Sampling(temperature=1.0, top_p=0.0))),
        m.Generate(1, 10, greedy(5, sampling=m.Sampling(temperature=1.0, top_k=-1))),
        m.Generate(1, 10, greedy(5, grammar=m.Grammar("regex", "[0-9]+"))),
        m.SetPriority(7, "background"),
        m.Hold(7, "tool"),
    ):
        expect_failure(driver, command, "invalid_value")
    expect_failure(driver, m.Append(1, [1] * 512), "context_length_exceeded")
    driver.apply(m.Fork(1, 2, "background"))
    expect_failure(driver, m.Fork(1, 3, "background"), "engine_overloaded")
    assert [failure.context for failure in driver.of_kind(m.Failed)] == [3]
    assert driver.held_tokens(1) == PROMPT


def test_append_and_generate_are_refused_while_generating_or_held(tiny: Any) -> None:
    driver = make_driver(tiny)
    driver.apply(m.Open(1, "foreground"), m.Append(1, PROMPT), m.Generate(1, 10, greedy(5)))
    driver.step()
    driver.apply(m.Append(1, OTHER), m.Generate(1, 11, greedy(5)))
    assert [failure.generation for failure in driver.step() if isinstance(failure, m.Failed)] == [0, 11]
    driver.run()
    assert len(driver.tokens_of(10)) == 5
    driver.apply(m.Hold(1, "idle"))
    driver.run()
    expect_failure(driver, m.Generate(1, 12, greedy(5)), "invalid_value")


def test_refused_resume_leaves_the_context_held(tiny: Any) -> None:
    driver = make_driver(tiny)
    driver.apply(m.Open(1, "foreground"), m.Append(1, PROMPT), m.Hold(1, "tool"))
    driver.run()
    expect_failure(driver, m.Resume(1, [1] * 600, 10, greedy(5)), "context_length_exceeded")
    expect_failure(driver, m.Resume(1, OTHER, 10, greedy(0)), "invalid_value")
    assert driver.held_tokens(1) == PROMPT
    driver.apply(m.Resume(1, OTHER, 11, greedy(2)))
    driver.run()
    assert len(driver.tokens_of(11)) == 2


def test_cancel_and_close_are_idempotent(tiny: Any) -> None:
    driver = make_driver(tiny)
    driver.apply(m.Cancel(1), m.Close(1), m.Open(1, "foreground"), m.Append(1, PROMPT), m.Cancel(1), m.Cancel(1))
    driver.apply(m.Generate(1, 10, greedy(5)), m.Close(1), m.Close(1))
    driver.run()
    assert driver.of_kind(m.Failed) == []
    assert driver.finished(10).reason == "cancelled"
    assert driver.core.stats().blocks_free == 256


def test_max_tokens_is_clipped_to_the_context_length(tiny: Any) -> None:
    driver = make_driver(tiny)
    driver.apply(m.Open(1, "foreground"), m.Append(1, [1] * 510), m.Generate(1, 10, greedy(100)))
    driver.run()
    assert driver.finished(10).output_tokens == 2
    expect_failure(driver, m.Generate(1, 11, greedy(1)), "context_length_exceeded")


def test_a_fault_in_a_step_fails_its_generations_and_nothing_else(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = make_driver(tiny)
    driver.apply(m.Open(1, "foreground"), m.Append(1, PROMPT), m.Generate(1, 10, greedy(5)))
    driver.step()
    with monkeypatch.context() as patch:
        patch.setattr(driver.core.models[0].runner, "run", lambda batch: torch.zeros(0).reshape(1, 2))
        driver.step()
    assert driver.finished(10).reason == "failed"
    driver.apply(m.Generate(1, 11, greedy(5)))
    driver.run()
    assert driver.finished(11).reason == "length"


def test_background_prefill_stays_within_its_allowance(tiny: Any) -> None:
    driver = make_driver(tiny, step_tokens=64, background_step_tokens=8)
    driver.apply(m.Open(1, "background"), m.Append(1, PROMPT * 10))
    driver.apply(m.Open(2, "background"), m.Append(2, PROMPT * 10))
    while driver.core.has_work:
        computed = sum(item.computed for item in driver.step() if isinstance(item, m.Prefilled))
        assert computed <= 8


def test_an_edit_leaves_nothing_behind_for_others(tiny: Any, tiny_reference: Any) -> None:
    """A draft is speculated, edited across a block border, and another context uses the old text."""
    driver = make_driver(tiny)
    driver.apply(m.Open(1, "background"), m.Append(1, PROMPT), m.Fork(1, 2, "foreground"))
    driver.run()
    driver.apply(m.Fork(1, 3, "foreground"), m.Truncate(1, 7), m.Append(1, OTHER))
    driver.run()
    for context, text in ((1, PROMPT[:7] + OTHER), (2, PROMPT), (3, PROMPT)):
        driver.apply(m.Generate(context, context * 10, greedy(10)))
        driver.run()
        assert driver.tokens_of(context * 10) == reference_greedy(tiny_reference, text, 10)


def test_a_thousand_rewinds_leak_nothing(tiny: Any) -> None:
    driver = make_driver(tiny, blocks=32)
    driver.apply(m.Open(1, "background"), m.Append(1, PROMPT))
    driver.run()
    free = driver.core.stats().blocks_free
    for i in range(1000):
        driver.apply(m.Truncate(1, 3 + i % 10), m.Append(1, PROMPT[3 + i % 10 :]))
        if i % 10 == 0:
            driver.run()
    driver.run()
    assert driver.core.stats().blocks_free == free
