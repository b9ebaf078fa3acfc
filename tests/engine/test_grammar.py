"""Constrained decoding with the default model's tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
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
    driver = make_driver(load(real_folder, torch.bfloat16), grammars=compiler)
    questions = ["What is 1234 * 5678?", "What is 12 * 3?", "What is 77 * 4?"]
    grammar = Grammar("json_schema", EXPRESSION)
    for i, question in enumerate(questions):
        text = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
        params = m.GenerateParams(max_tokens=60, stop_token_ids=[2], grammar=grammar)
        driver.apply(m.Open(i, "foreground"), m.Append(i, tokenizer.encode(text)), m.Generate(i, i, params))
    driver.run()
    for i in range(len(questions)):
        assert driver.finished(i).reason == "stop"
        assert set(json.loads(tokenizer.decode(driver.tokens_of(i)))) == {"expression"}
