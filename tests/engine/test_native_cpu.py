"""The native CPU runner against transformers, over scattered blocks, in every kind of batch."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config

from engine import messages as m
from engine.model.batch import Batch, SequenceInput
from engine.model.cpu.build import BuildError, build_kernels
from engine.model.native_cpu import NativeCpuRunner, Quantisation, check_supported
from engine.model.weights import NativeConfig, UnsupportedModel, load_weights
from engine.served_model import ServedModel
from engine.settings import EngineSettings
from tests.engine.driver import Driver, load_reference, make_core, reference_greedy
from tests.engine.test_model import COUNT, END_OF_TURN

VOCAB = 101
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 1024,
    "initializer_range": 0.2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
CONFIGS: dict[str, Any] = {
    "llama": LlamaConfig(**SIZES),
    "llama3-rope-tied": LlamaConfig(**SIZES, rope_parameters=LLAMA3_ROPE, tie_word_embeddings=True),
    "qwen2": Qwen2Config(**SIZES),
    "qwen3": Qwen3Config(**SIZES),
}


@pytest.fixture(scope="session")
def library() -> Path:
    return build_kernels(EngineSettings().model_cache)


@pytest.fixture(scope="module", params=sorted(CONFIGS))
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    torch.manual_seed(3)
    causal_lm: Any = AutoModelForCausalLM
    model = causal_lm.from_config(CONFIGS[request.param], dtype=torch.float32)
    for name, parameter in model.named_parameters():
        if name.endswith("bias") or "norm" in name:
            torch.nn.init.normal_(parameter, 1.0 if "norm" in name else 0.0, 0.3)
    model.save_pretrained(folder)
    return folder


def make_runner(
    folder: Path,
    library: Path,
    dtype: torch.dtype = torch.float32,
    quantisation: Quantisation = "none",
    blocks: int = 256,
    threads: int = 2,
) -> NativeCpuRunner:
    weights = load_weights(folder, dtype, torch.device("cpu"), lambda stage, fraction: None)
    return NativeCpuRunner(weights, blocks, threads, quantisation, library)


@torch.inference_mode()
def reference_logits(folder: Path, text: list[int]) -> torch.Tensor:
    logits: torch.Tensor = load_reference(folder)(torch.tensor([text])).logits[0]
    return logits


def random_text(rng: random.Random, length: int) -> list[int]:
    return [rng.randrange(3, VOCAB) for _ in range(length)]


def test_one_pass_gives_the_logits_of_transformers(folder: Path, library: Path) -> None:
    rng = random.Random(1)
    text = random_text(rng, 333)
    blocks = rng.sample(range(256), 21)
    logits = make_runner(folder, library).run(Batch([SequenceInput(text, 0, blocks, len(text))]))
    torch.testing.assert_close(logits, reference_logits(folder, text), atol=2e-3, rtol=1e-3)


def test_any_chunks_in_any_company_give_the_same_logits(folder: Path, library: Path) -> None:
    """Three texts in random pieces, decodes beside prefills, several rows of logits each, over mixed-up blocks."""
    rng = random.Random(2)
    runner = make_runner(folder, library)
    texts = [random_text(rng, length) for length in (90, 300, 41)]
    free = rng.sample(range(256), 256)
    tables = [[free.pop() for _ in range(20)] for _ in texts]
    done, seen = [0, 0, 0], [0, 0, 0]
    expected = [reference_logits(folder, text) for text in texts]
    while any(done[i] < len(texts[i]) for i in range(3)):
        work = []
        for i, text in enumerate(texts):
            count = min(rng.choice([0, 1, 1, 2, 5, 17, 40]), len(text) - done[i])
            if count:
                work.append(
                    (i, SequenceInput(text[done[i] : done[i] + count], done[i], tables[i], rng.randint(0, count)))
                )
        if not work:
            continue
        rows = iter(runner.run(Batch([sequence for _, sequence in work])))
        for i, sequence in work:
            done[i] += len(sequence.tokens)
            for position in range(done[i] - sequence.logit_rows, done[i]):
                torch.testing.assert_close(next(rows), expected[i][position], atol=2e-3, rtol=1e-3)
                seen[i] += 1
    assert min(seen) > 5


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 16, 17, 33, 100])
def test_any_number_of_rows_gives_the_same_logits(folder: Path, library: Path, rows: int) -> None:
    rng = random.Random(rows)
    runner = make_runner(folder, library)
    texts = [random_text(rng, 2) for _ in range(rows)]
    sequences = [SequenceInput(text, 0, [i], 1) for i, text in enumerate(texts)]
    together = runner.run(Batch(sequences)).clone()
    for i, sequence in enumerate(sequences):
        alone = runner.run(Batch([SequenceInput(sequence.tokens, 0, [200], 1)]))[0]
        torch.testing.assert_close(together[i], alone, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("quantisation", "error"), [("none", 0.06), ("int8", 0.08), ("q4", 0.6)])
def test_smaller_numbers_stay_near(folder: Path, library: Path, quantisation: Quantisation, error: float) -> None:
    """Relative to the spread of the logits; decoding one token at a time, where the small copies are used."""
    text = random_text(random.Random(5), 60)
    runner = make_runner(folder, library, torch.bfloat16, quantisation)
    expected = reference_logits(folder, text)
    rows = [
        runner.run(Batch([SequenceInput(text[i : i + 1], i, range(9, 13), 1)]))[0].clone() for i in range(len(text))
    ]
    assert (torch.stack(rows) - expected).abs().mean() < error * expected.std()


def test_copied_blocks_hold_the_same_and_copies_are_made_in_order(folder: Path, library: Path) -> None:
    text = random_text(random.Random(6), 24)
    runner = make_runner(folder, library)
    runner.run(Batch([SequenceInput(text[:20], 0, [5, 6], 0)]))
    logits = runner.run(Batch([SequenceInput(text[20:], 20, [9, 8], 4)], copies=[(6, 8), (5, 6), (6, 9)]))
    torch.testing.assert_close(logits, reference_logits(folder, text)[20:], atol=2e-3, rtol=1e-3)


def test_tokens_of_the_last_step_can_be_given_as_a_tensor(folder: Path, library: Path) -> None:
    runner = make_runner(folder, library)
    plain = runner.run(Batch([SequenceInput([7], 0, [1], 1)])).clone()
    given = runner.run(Batch([SequenceInput([0], 0, [2], 1)], sampled=torch.tensor([7])))
    assert torch.equal(plain, given)


def test_q4_brings_back_weights_that_were_four_bits(real_folder: Path, library: Path) -> None:
    """The default model's file is Q4_1 with an eight-bit head: its small copy is the same model, not a coarser one."""
    text = [1, 9906, 28, 638, 359, 346, 30, 2683, 506, 314]
    weights = load_weights(real_folder, torch.float32, torch.device("cpu"), lambda stage, fraction: None)
    exact, small = (NativeCpuRunner(weights, 8, 2, q, library) for q in ("none", "q4"))
    for i, token in enumerate(text):
        batch = Batch([SequenceInput([token], i, [0], 1)])
        expected, got = exact.run(batch), small.run(batch)
        assert (expected - got).abs().max() < 0.02 * expected.std()


def test_products_of_bytes_are_as_exact_as_bfloat16(real_folder: Path, library: Path) -> None:
    """A few rows times weights of four bits are multiplied in bytes where the processor can.

    Over many texts: bfloat16 turns a single token out by ten times its usual error on one path or the other.
    """
    rng = random.Random(7)
    weights = load_weights(real_folder, torch.float32, torch.device("cpu"), lambda stage, fraction: None)
    exact = NativeCpuRunner(weights, 8, 2, "none", library)
    bfloat16, bytes = (NativeCpuRunner(weights, 8, 2, q, library, torch.bfloat16) for q in ("none", "q4"))
    errors = {"bfloat16": 0.0, "bytes": 0.0}
    for _ in range(12):
        for i, token in enumerate([1, *(rng.randrange(100, 40000) for _ in range(7))]):
            batch = Batch([SequenceInput([token], i, [0], 1)])
            expected = exact.run(batch).clone()
            errors["bfloat16"] += float((expected - bfloat16.run(batch)).abs().mean() / expected.std())
            errors["bytes"] += float((expected - bytes.run(batch)).abs().mean() / expected.std())
    assert errors["bytes"] < 1.25 * errors["bfloat16"]


def test_bfloat16_weights_that_were_four_bits_are_kept_in_those_and_compute_the_same(
    real_folder: Path, library: Path
) -> None:
    """Bit for bit, for few and for many rows."""
    logits = []
    for stored in (torch.float32, torch.bfloat16):
        weights = load_weights(real_folder, stored, torch.device("cpu"), lambda stage, fraction: None)
        runner = NativeCpuRunner(weights, 8, 2, "none", library, torch.bfloat16)
        assert runner.weights == "bf16"
        batches = [SequenceInput(range(300, 360), 0, range(4), 60), SequenceInput([5], 60, range(4), 1)]
        logits.append(torch.cat([runner.run(Batch([sequence])).clone() for sequence in batches]))
    assert torch.equal(*logits)


def test_bfloat16_kept_in_four_bits_is_the_same_bfloat16(real_folder: Path, library: Path) -> None:
    """Float32 weights of the default model are kept smaller, rounded ones as they are: the answers are the same."""
    exact = load_weights(real_folder, torch.float32, torch.device("cpu"), lambda stage, fraction: None)
    matrices = ("qkv", "output", "gate_up", "down")
    layers = [replace(layer, **{name: getattr(layer, name).bfloat16() for name in matrices}) for layer in exact.layers]
    rounded = replace(exact, layers=layers, head=exact.head.bfloat16(), embedding=exact.embedding.bfloat16())
    small, plain = (NativeCpuRunner(weights, 8, 2, "none", library, torch.bfloat16) for weights in (exact, rounded))
    text = [1, 9906, 28, 638, 359, 346, 30, 2683, 506, 314]
    for first, last in ((0, 1), (1, 3), (3, 10)):
        batch = Batch([SequenceInput(text[first:last], first, [0], last - first)])
        assert torch.equal(small.run(batch), plain.run(batch))


def test_the_default_model_answers_like_transformers(real_folder: Path, library: Path) -> None:
    """Fifty prompts in float32, typed in pieces with edits, through the whole engine; `test_model` has the prompts."""
    from transformers import AutoTokenizer

    from tests.engine.prompts import PROMPTS
    from tests.engine.test_model import generate, type_with_edits

    tokenizer: Any = AutoTokenizer.from_pretrained(real_folder)
    form = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
    prompts: list[list[int]] = [tokenizer.encode(form.format(prompt)) for prompt in PROMPTS]
    runner = make_runner(real_folder, library, blocks=600)
    driver = Driver(make_core([ServedModel("default", runner)], step_tokens=96))
    rng = random.Random(1)
    for i in range(len(prompts)):
        driver.apply(m.Open(i, "foreground"))
    for i in rng.sample(range(len(prompts)), len(prompts)):
        type_with_edits(driver, i, prompts[i], rng)
    params = m.GenerateParams(max_tokens=COUNT, stop_token_ids=[END_OF_TURN])
    driver.apply(*[m.Generate(i, i, params) for i in range(len(prompts))])
    driver.run()
    expected = generate(load_reference(real_folder), prompts, COUNT)
    assert [driver.tokens_of(i) for i in range(len(prompts))] == expected


def test_answers_do_not_depend_on_the_number_of_threads(folder: Path, library: Path) -> None:
    text = random_text(random.Random(8), 50)
    expected = reference_greedy(load_reference(folder), text, 20)
    for threads in (1, 3):
        driver = Driver(make_core([ServedModel("tiny", make_runner(folder, library, threads=threads))]))
        driver.apply(m.Open(1, "foreground"), m.Append(1, text), m.Generate(1, 1, m.GenerateParams(20)))
        driver.run()
        assert driver.tokens_of(1) == expected


def test_sizes_without_tiles_are_refused(tiny_folder: Path) -> None:
    with pytest.raises(UnsupportedModel, match="multiples of 32"):
        check_supported(NativeConfig.from_folder(tiny_folder), torch.float32)


def test_a_machine_without_a_compiler_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="no C\\+\\+ compiler"):
        build_kernels(tmp_path, "no-such-compiler")


def test_a_compiler_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="cannot compile"):
        build_kernels(tmp_path, "false")
    assert list((tmp_path / "kernels").glob("*.so")) == []


def test_kernels_are_compiled_once(library: Path) -> None:
    before = library.stat().st_mtime_ns
    assert build_kernels(EngineSettings().model_cache) == library
    assert library.stat().st_mtime_ns == before


@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 1e-3), (torch.bfloat16, 0.06)])
def test_processors_without_wide_vectors_or_tiles_compute_the_same(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, dtype: torch.dtype, error: float
) -> None:
    text = random_text(random.Random(9), 70)
    portable = build_kernels(EngineSettings().model_cache, architecture="x86-64-v3")
    logits = make_runner(folder, portable, dtype).run(Batch([SequenceInput(text, 0, range(3, 8), len(text))]))
    expected = reference_logits(folder, text)
    assert (logits - expected).abs().mean() < error * expected.std()


@pytest.mark.parametrize("quantisation", ["none", "int8", "q4"])
def test_bfloat16_logits_depend_on_the_text_only(folder: Path, library: Path, quantisation: Quantisation) -> None:
    """Not on chunks, company, blocks or threads. (Quantised, steps of up to three rows are rounded otherwise.)"""
    text = random_text(random.Random(10), 700)
    whole = make_runner(folder, library, torch.bfloat16, quantisation)
    expected = whole.run(Batch([SequenceInput(text, 0, range(44), 700)])).clone()
    pieces = make_runner(folder, library, torch.bfloat16, quantisation, threads=3)
    blocks = random.Random(11).sample(range(255), 44)
    for start in range(0, 700, 28):
        other = SequenceInput(text[:5], 0, [255], 0)
        rows = pieces.run(Batch([other, SequenceInput(text[start : start + 28], start, blocks, 28)]))
        assert torch.equal(rows, expected[start : start + 28])
