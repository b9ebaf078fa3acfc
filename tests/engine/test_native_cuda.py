"""The native CUDA runner on CPU: its arithmetic against transformers, and how it lays out steps."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from engine import messages as m
from engine.model.batch import Batch, SequenceInput
from engine.model.layer_ops import Ops
from engine.model.native_cuda import GRAPH_ROWS, NativeCudaRunner
from engine.model.weights import load_weights
from engine.served_model import ServedModel
from tests.engine.driver import Driver, load_reference, make_core, reference_greedy
from tests.engine.test_native_cpu import CONFIGS, VOCAB, random_text, reference_logits


def assert_near(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, atol=2e-3, rtol=1e-3)


@pytest.fixture(scope="module", params=sorted(CONFIGS))
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Models this small are done before a second thread has woken up."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def save_model(kind: str, folder: Path) -> Path:
    torch.manual_seed(4)
    causal_lm: Any = AutoModelForCausalLM
    model = causal_lm.from_config(CONFIGS[kind], dtype=torch.float32)
    for name, parameter in model.named_parameters():
        if name.endswith("bias") or "norm" in name:
            torch.nn.init.normal_(parameter, 1.0 if "norm" in name else 0.0, 0.3)
    model.save_pretrained(folder)
    return folder


def make_runner(
    folder: Path, dtype: torch.dtype = torch.float32, block_size: int = 16, ops: Ops | None = None
) -> NativeCudaRunner:
    weights = load_weights(folder, dtype, torch.device("cpu"), lambda stage, fraction: None)
    return NativeCudaRunner(weights, 4096 // block_size, block_size, ops)


def chunks(text: list[int], sizes: Iterator[int], blocks: list[int]) -> Iterator[SequenceInput]:
    start = 0
    while start < len(text):
        piece = text[start : start + next(sizes)]
        yield SequenceInput(piece, start, blocks, len(piece))
        start += len(piece)


def test_one_pass_gives_the_logits_of_transformers(folder: Path) -> None:
    rng = random.Random(1)
    text = random_text(rng, 333)
    blocks = rng.sample(range(256), 21)
    logits = make_runner(folder).run(Batch([SequenceInput(text, 0, blocks, len(text))]))
    assert_near(logits, reference_logits(folder, text))


def test_any_chunks_in_any_company_give_the_same_logits(folder: Path) -> None:
    """Four texts in random pieces of all kinds, with all rows of logits, over mixed-up blocks."""
    rng = random.Random(2)
    runner = make_runner(folder)
    texts = [random_text(rng, length) for length in (120, 300, 41, 77)]
    free = rng.sample(range(256), 256)
    sizes = iter(lambda: rng.choice([1, 1, 2, 5, 16, 17, 40]), 0)
    work = [chunks(text, sizes, [free.pop() for _ in range(20)]) for text in texts]
    expected = [reference_logits(folder, text) for text in texts]
    left = set(range(len(texts)))
    while left:
        pieces = [(i, next(work[i], None)) for i in rng.sample(sorted(left), rng.randint(1, len(left)))]
        left -= {i for i, piece in pieces if piece is None}
        step = [(i, piece) for i, piece in pieces if piece is not None]
        rows = iter(runner.run(Batch([piece for _, piece in step])))
        for i, piece in step:
            for position in range(piece.start, piece.start + len(piece.tokens)):
                assert_near(next(rows), expected[i][position])
        assert next(rows, None) is None


@pytest.mark.parametrize("rows", [1, 3, 5, 17, GRAPH_ROWS[-1], GRAPH_ROWS[-1] + 1])
def test_padding_changes_nothing(llama_folder: Path, rows: int) -> None:
    runner = make_runner(llama_folder, block_size=4)
    rng = random.Random(rows)
    sequences = [SequenceInput([rng.randrange(90)], 0, [i], rng.choice([0, 1, 1])) for i in range(rows)]
    logits = runner.run(Batch(sequences)).clone()
    wanted = [sequence for sequence in sequences if sequence.logit_rows]
    assert len(logits) == len(wanted)
    for row, sequence in list(zip(logits, wanted, strict=True))[:20]:
        alone = runner.run(Batch([SequenceInput(sequence.tokens, 0, [600], 1)]))[0]
        torch.testing.assert_close(row, alone, atol=1e-4, rtol=1e-4)


def test_a_step_without_sequences_only_copies(folder: Path) -> None:
    text = random_text(random.Random(6), 24)
    runner = make_runner(folder)
    runner.run(Batch([SequenceInput(text[:20], 0, [5, 6], 0)]))
    assert runner.run(Batch([], copies=[(6, 8), (5, 6), (6, 9)])).shape == (0, VOCAB)
    logits = runner.run(Batch([SequenceInput(text[20:], 20, [9, 8], 4)]))
    assert_near(logits, reference_logits(folder, text)[20:])


@pytest.mark.parametrize("rows", [3, GRAPH_ROWS[-1] + 1])
def test_tokens_of_the_last_step_can_be_given_as_a_tensor(llama_folder: Path, rows: int) -> None:
    runner = make_runner(llama_folder, block_size=4)
    tokens = [i % 90 for i in range(rows)]
    plain = runner.run(Batch([SequenceInput([token], 0, [i], 1) for i, token in enumerate(tokens)])).clone()
    placeholders = [SequenceInput([0], 0, [i], 1) for i in range(rows)]
    assert torch.equal(runner.run(Batch(placeholders, sampled=torch.tensor(tokens))), plain)


@pytest.mark.parametrize("run_ahead", [False, True])
def test_the_engine_answers_like_transformers(folder: Path, run_ahead: bool) -> None:
    rng = random.Random(8)
    prompts = [random_text(rng, rng.randint(3, 60)) for _ in range(6)]
    driver = Driver(make_core([ServedModel("tiny", make_runner(folder, block_size=4))], run_ahead=run_ahead))
    for i, prompt in enumerate(prompts):
        driver.apply(m.Open(i, "foreground"), m.Append(i, prompt), m.Generate(i, i, m.GenerateParams(20)))
    driver.run()
    reference = load_reference(folder)
    assert [driver.tokens_of(i) for i in range(6)] == [reference_greedy(reference, prompt, 20) for prompt in prompts]


def test_bfloat16_stays_near(folder: Path) -> None:
    text = random_text(random.Random(5), 60)
    runner = make_runner(folder, torch.bfloat16)
    rows = [runner.run(Batch([SequenceInput(text[i : i + 1], i, range(9, 13), 1)]))[0].clone() for i in range(60)]
    expected = reference_logits(folder, text)
    assert (torch.stack(rows) - expected).abs().mean() < 0.06 * expected.std()


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (Batch([SequenceInput([96], 0, [0], 1)]), "token id"),
        (Batch([SequenceInput([1], 0, [256], 1)]), "pool"),
        (Batch([SequenceInput([1], 16, [0], 1)]), "do not fit"),
        (Batch([SequenceInput([1], 0, [0], 2)]), "rows of logits"),
        (Batch([SequenceInput([1], 0, [0], 1)], copies=[(0, 256)]), "pool"),
        (Batch([SequenceInput([1], 0, [0], 1)], sampled=torch.tensor([1, 2])), "one sampled token"),
    ],
)
def test_what_would_read_or_write_elsewhere_is_refused(llama_folder: Path, batch: Batch, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_runner(llama_folder).run(batch)
