"""Constrained decoding with the default model's tokenizer."""

from __future__ import annotations

import json
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import xgrammar
from transformers import AutoTokenizer

from engine import messages as m
from engine.messages import Grammar
from engine.model.grammar import GrammarCompiler, GrammarError, MaskFiller, MaskRow, PendingMatcher
from tests.engine.driver import grammars_of, load, make_driver

VOCAB = 49152
EXPRESSION = json.dumps(
    {
        "type": "object",
        "properties": {"expression": {"type": "string"}},
        "required": ["expression"],
        "additionalProperties": False,
    }
)


@pytest.fixture(scope="module")
def tokenizer(real_folder: Path) -> Any:
    return AutoTokenizer.from_pretrained(real_folder)


@pytest.fixture(scope="module")
def compiler(real_folder: Path) -> GrammarCompiler:
    return grammars_of(real_folder, VOCAB)


def finished_after(compiler: GrammarCompiler, tokenizer: Any, grammar: Grammar, text: str) -> list[bool]:
    matcher = compiler.matcher(grammar, [2])
    finished = []
    for token in tokenizer.encode(text, add_special_tokens=False):
        matcher.accept(token)
        finished.append(matcher.is_finished)
    return finished


def test_complete_json_is_finished_and_not_before(compiler: GrammarCompiler, tokenizer: Any) -> None:
    finished = finished_after(compiler, tokenizer, Grammar("json_schema", EXPRESSION), '{"expression": "1+1"}')
    assert finished[-1]
    assert not any(finished[:-1])


def test_text_that_may_go_on_is_not_finished(compiler: GrammarCompiler, tokenizer: Any) -> None:
    assert finished_after(compiler, tokenizer, Grammar("regex", "[0-9]+"), "123") == [False, False, False]
    assert finished_after(compiler, tokenizer, Grammar("regex", "[0-9]{3}"), "123") == [False, False, True]


def test_text_given_in_the_prompt_counts_as_written(compiler: GrammarCompiler, tokenizer: Any) -> None:
    grammar = Grammar("json_schema", EXPRESSION, given='{"expression": "')
    assert finished_after(compiler, tokenizer, grammar, '1+1"}')[-1]
    with pytest.raises(GrammarError):
        compiler.matcher(Grammar("json_schema", EXPRESSION, given='{"other'), [2])


def test_whitespace_between_elements_is_not_free(compiler: GrammarCompiler, tokenizer: Any) -> None:
    with pytest.raises(GrammarError):
        finished_after(compiler, tokenizer, Grammar("json_schema", EXPRESSION), '{ \n\n "expression": "1"}')


def test_stop_token_is_allowed_only_when_complete(compiler: GrammarCompiler, tokenizer: Any) -> None:
    matcher = compiler.matcher(Grammar("regex", "[0-9]{2,4}"), [2])
    allowed = []
    for digit in "123":
        bitmask = xgrammar.allocate_token_bitmask(1, VOCAB)
        matcher.fill(bitmask, 0)
        allowed.append(bool(int(bitmask[0, 0]) >> 2 & 1))
        matcher.accept(tokenizer.encode(digit, add_special_tokens=False)[0])
    assert allowed == [False, False, True]


@pytest.mark.parametrize(
    "grammar",
    [
        Grammar("json_schema", "not json"),
        Grammar("json_schema", '{"type": "nope"}'),
        Grammar("regex", "("),
        Grammar("regex", "a" * 40_000),
    ],
)
def test_invalid_grammars_are_refused(compiler: GrammarCompiler, grammar: Grammar) -> None:
    with pytest.raises(GrammarError):
        compiler.matcher(grammar, [])


def test_compiled_grammars_are_bounded(compiler: GrammarCompiler) -> None:
    for i in range(200):
        compiler.matcher(Grammar("regex", f"a{i}"), [])
    assert len(compiler._compiled) <= 64


def test_the_default_model_fills_a_forced_schema(real_folder: Path, compiler: GrammarCompiler, tokenizer: Any) -> None:
    driver = make_driver(load(real_folder), blocks=400, grammars=compiler)
    system = 'Reply with JSON such as {"expression": "2 + 2"} that holds the expression to compute.'
    wanted = ["1234 * 5678", "12 * 3", "77 * 4"]
    params = m.GenerateParams(max_tokens=60, stop_token_ids=[2], grammar=Grammar("json_schema", EXPRESSION))
    for i, expression in enumerate(wanted):
        turns = [("system", system), ("user", f"What is {expression}?")]
        text = "".join(f"<|im_start|>{role}\n{content}<|im_end|>\n" for role, content in turns)
        prompt = tokenizer.encode(text + "<|im_start|>assistant\n")
        driver.apply(m.Open(i, "foreground"), m.Append(i, prompt), m.Generate(i, i, params))
    driver.run()
    assert [driver.finished(i).reason for i in range(len(wanted))] == ["stop"] * len(wanted)
    written = [json.loads(tokenizer.decode(driver.tokens_of(i))) for i in range(len(wanted))]
    assert written == [{"expression": expression} for expression in wanted]


def test_a_new_grammar_compiles_beside_the_steps_of_others(real_folder: Path, tokenizer: Any) -> None:
    """A generation whose grammar is not ready holds up nobody, and answers when it is."""
    driver = make_driver(load(real_folder), blocks=64, block_size=16, grammars=grammars_of(real_folder, VOCAB))
    prompt = tokenizer.encode("Say a number:")
    grammar = m.Grammar("regex", "[0-9]{3}")
    for context, constraint in ((1, grammar), (2, None)):
        driver.apply(m.Open(context, "foreground"), m.Append(context, prompt))
        driver.apply(m.Generate(context, context, m.GenerateParams(6, stop_token_ids=[2], grammar=constraint)))
    driver.run(limit=1_000_000)
    assert tokenizer.decode(driver.tokens_of(1)).strip().isdigit()
    assert driver.finished(1).reason == "stop"
    assert driver.finished(2).output_tokens == 6


def test_the_loop_is_woken_when_a_grammar_is_compiled(real_folder: Path, tokenizer: Any) -> None:
    grammars = grammars_of(real_folder, VOCAB)
    driver = make_driver(load(real_folder), blocks=64, block_size=16, grammars=grammars)
    driver.apply(m.Open(1, "foreground"), m.Append(1, tokenizer.encode("Say a number:")))
    with grammars._lock:
        params = m.GenerateParams(6, stop_token_ids=[2], grammar=m.Grammar("regex", "[0-9]{4}"))
        driver.apply(m.Generate(1, 1, params))
        while driver.core.wait_seconds() == 0:
            driver.step()
        assert 0 < driver.core.wait_seconds() < 0.01
    (compiling,) = grammars._compiling
    compiling.result(timeout=30)
    assert driver.core.wait_seconds() == 0
    driver.run()
    assert len(tokenizer.decode(driver.tokens_of(1)).strip()) == 4


def test_a_grammar_that_does_not_compile_fails_its_generation_only(real_folder: Path, tokenizer: Any) -> None:
    driver = make_driver(load(real_folder), blocks=64, block_size=16, grammars=grammars_of(real_folder, VOCAB))
    driver.apply(m.Open(1, "foreground"), m.Append(1, tokenizer.encode("Say:")))
    driver.apply(m.Generate(1, 7, m.GenerateParams(6, grammar=m.Grammar("json_schema", '{"type": "nonsense"}'))))
    driver.run(limit=1_000_000)
    assert [(failed.generation, failed.code) for failed in driver.of_kind(m.Failed)] == [(7, "invalid_value")]
    driver.apply(m.Generate(1, 8, m.GenerateParams(2)))
    driver.run()
    assert driver.finished(8).output_tokens == 2


def test_a_grammar_that_takes_too_long_is_given_up() -> None:
    pending = PendingMatcher(Future(), limit_s=60.0)
    assert not pending.done
    pending = PendingMatcher(Future(), limit_s=0.0)
    assert pending.done
    with pytest.raises(GrammarError, match="not compiled within"):
        pending.result()


def test_masks_filled_in_a_thread_equal_those_filled_directly(compiler: GrammarCompiler, tokenizer: Any) -> None:
    draft = tuple(tokenizer.encode('{"expression', add_special_tokens=False))
    first = compiler.matcher(Grammar("json_schema", EXPRESSION), [2])
    last = compiler.matcher(Grammar("regex", "[0-9]+"), [2])
    count = len(draft) + 3
    plain = xgrammar.allocate_token_bitmask(count, VOCAB)
    first.fill_draft(plain, 0, draft)
    last.fill(plain, count - 1)
    rows = [MaskRow(0, first, draft), MaskRow(count - 1, last, ())]
    assert MaskFiller().start(rows, count, VOCAB).result(timeout=30).tolist() == plain.tolist()


def test_cancelled_while_its_grammar_compiles_leaves_the_context_usable(real_folder: Path, tokenizer: Any) -> None:
    driver = make_driver(load(real_folder), blocks=64, block_size=16, grammars=grammars_of(real_folder, VOCAB))
    driver.apply(m.Open(1, "foreground"), m.Append(1, tokenizer.encode("Say:")))
    driver.apply(m.Generate(1, 7, m.GenerateParams(6, grammar=m.Grammar("regex", "[a-c]{9}"))), m.Cancel(1))
    driver.apply(m.Generate(1, 8, m.GenerateParams(2)))
    driver.run(limit=1_000_000)
    assert driver.finished(7).reason == "cancelled"
    assert driver.finished(8).output_tokens == 2


def test_masks_of_a_draft_equal_those_of_a_matcher_that_went_there(compiler: GrammarCompiler, tokenizer: Any) -> None:
    draft = tokenizer.encode('{"expression": "1', add_special_tokens=False)
    grammar = Grammar("json_schema", EXPRESSION)
    matcher = compiler.matcher(grammar, [2])
    assert matcher.allowed([*draft, 17]) in (draft, [*draft, 17])
    ahead = xgrammar.allocate_token_bitmask(len(draft) + 1, VOCAB)
    matcher.fill_draft(ahead, 0, draft)
    plain = xgrammar.allocate_token_bitmask(len(draft) + 1, VOCAB)
    for i in range(len(draft) + 1):
        matcher.fill(plain, i)
        if i < len(draft):
            matcher.accept(draft[i])
    assert ahead.tolist() == plain.tolist()


def test_a_draft_under_a_grammar_changes_nothing(real_folder: Path, tokenizer: Any) -> None:
    grammars = grammars_of(real_folder, VOCAB)
    model = load(real_folder)
    prompt = tokenizer.encode("Compute 12 * 7. The call is ")
    grammar = m.Grammar("json_schema", EXPRESSION)
    answers = []
    guess: list[int] = tokenizer.encode('{"expression": "12 * 7"}', add_special_tokens=False)
    for draft in ([], guess):
        driver = make_driver(model, blocks=64, block_size=16, grammars=grammars, speculate=bool(draft))
        driver.apply(m.Open(1, "foreground"), m.Append(1, prompt))
        driver.apply(m.Generate(1, 1, m.GenerateParams(24, stop_token_ids=[2], grammar=grammar, draft=draft)))
        driver.run(limit=1_000_000)
        answers.append(driver.tokens_of(1))
    assert answers[0] == answers[1]
