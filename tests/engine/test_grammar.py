"""Constrained decoding with the default model's tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import xgrammar
from transformers import AutoTokenizer

from engine import messages as m
from engine.messages import Grammar
from engine.model.grammar import GrammarCompiler, GrammarError
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
