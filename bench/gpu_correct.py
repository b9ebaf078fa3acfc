"""The parts of the GPU check that ask whether answers are right."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config

from bench.gpu_parts import Emit, Sizes
from engine import messages as m
from engine.admission import Admission
from engine.core import EngineCore
from engine.kv.host_tier import make_host_tier
from engine.kv.swap import Swapper
from engine.model.batch import Batch, SequenceInput
from engine.model.native_cuda import NativeCudaRunner
from engine.model.weights import load_weights
from engine.scheduler import Scheduler
from engine.served_model import ServedModel

BLOCK_SIZE = 16
BLOCKS = 512
FLOAT32_BOUND = 2e-3
"""Largest difference of a logit; they are about 3."""
SHAPE: dict[str, Any] = {
    "vocab_size": 211,
    "hidden_size": 256,
    "intermediate_size": 320,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 128,
    "max_position_embeddings": 4096,
    "initializer_range": 0.1,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
"""Heads as wide as those of the models that people run; the rest tiny."""
CONFIGS: dict[str, Any] = {"llama": LlamaConfig, "qwen2": Qwen2Config, "qwen3": Qwen3Config}


def logits(sizes: Sizes, device: torch.device, emit: Emit) -> None:
    """Texts in random pieces, several to a step, against transformers. In bfloat16 both stray from its float32
    logits, and ours may stray at most twice as far as its own."""
    for kind in CONFIGS:
        with tempfile.TemporaryDirectory() as folder:
            _save(kind, Path(folder))
            texts = _texts(sizes)
            exact = _reference(Path(folder), texts, torch.float32, device)
            found = _in_pieces(Path(folder), texts, torch.float32, device)
            worst = max(float((a - b).abs().max()) for a, b in zip(found, exact, strict=True))
            emit(f"{kind}_float32_largest_difference", worst)
            ours = _mean_error(_in_pieces(Path(folder), texts, torch.bfloat16, device), exact)
            theirs = _mean_error(_reference(Path(folder), texts, torch.bfloat16, device), exact)
            emit(f"{kind}_bfloat16_mean_difference", {"midstream": ours, "transformers": theirs})
        if not worst < FLOAT32_BOUND or not ours < 2 * theirs:
            raise AssertionError(f"{kind} differs from transformers")


def run_ahead(sizes: Sizes, device: torch.device, emit: Emit) -> None:
    """The engine's answers, launched ahead and not, greedy and random, against `generate` where greedy."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _save("llama", folder)
        texts = _texts(sizes)
        plain, ahead = (_answers(folder, texts, sizes.answers, device, way) for way in (False, True))
        emit("equal_answers", sum(a == b for a, b in zip(plain, ahead, strict=True)))
        if plain != ahead:
            raise AssertionError("answers depend on launching ahead")
        model = _load(folder, torch.float32, device)
        for i in range(0, len(texts), 2):
            ids = torch.tensor([texts[i]], device=device)
            options = {"max_new_tokens": sizes.answers, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
            output = model.generate(ids, attention_mask=torch.ones_like(ids), **options)
            if output[0, len(texts[i]) :].tolist() != plain[i]:
                raise AssertionError("an answer is not that of transformers")
        emit("answers", len(texts))


def swap(sizes: Sizes, device: torch.device, emit: Emit) -> None:
    """Blocks of KV out to host memory and back into other blocks, beside a move that is taken back; and how fast."""
    count, heads, dim = sizes.swapped_blocks, sizes.model["num_key_value_heads"], sizes.model["head_dim"]
    shape = (2, sizes.model["num_hidden_layers"], 2 * count, BLOCK_SIZE, heads, dim)
    pool = torch.randn(shape, dtype=torch.bfloat16, device=device)
    before = pool[:, :, :count].clone()
    tier = make_host_tier([pool.permute(2, 0, 1, 3, 4, 5)], 2 * count, gbps=None, clock=time.monotonic)
    slots, others = tier.slots.allocate(count), tier.slots.allocate(count)
    tier.start_out(list(zip(range(count), slots, strict=True)))
    _finish(tier)
    pool[:, :, :count] = 0
    tier.start_in([(count + i, slot) for i, slot in enumerate(slots)])
    tier.cancel(tier.start_out(list(zip(range(count), others, strict=True))))
    _finish(tier)
    if not torch.equal(pool[:, :, count:], before):
        raise AssertionError("blocks came back changed")
    tier.check_integrity()
    tier.slots.check_integrity([slots, others])
    for direction, traffic in (("out", tier.stats.outward), ("in", tier.stats.inward)):
        emit(f"{direction}_gb_per_s", traffic.bytes / max(traffic.seconds, 1e-9) / 1e9)
    tier.close()


def _finish(tier: Swapper) -> None:
    while tier.moving:
        time.sleep(tier.wait_seconds())
        if any(ticket.state == "failed" for ticket in tier.poll()):
            raise AssertionError("a move failed")


def _texts(sizes: Sizes) -> list[list[int]]:
    rng = random.Random(1)
    return [[rng.randrange(3, SHAPE["vocab_size"]) for _ in range(length)] for length in sizes.texts]


def _save(kind: str, folder: Path) -> None:
    torch.manual_seed(4)
    causal_lm: Any = AutoModelForCausalLM
    model = causal_lm.from_config(CONFIGS[kind](**SHAPE), dtype=torch.float32)
    for name, parameter in model.named_parameters():
        if name.endswith("bias") or "norm" in name:
            torch.nn.init.normal_(parameter, 1.0 if "norm" in name else 0.0, 0.3)
    model.save_pretrained(folder)


def _runner(folder: Path, dtype: torch.dtype, device: torch.device) -> NativeCudaRunner:
    return NativeCudaRunner(load_weights(folder, dtype, device, lambda stage, done: None), BLOCKS, BLOCK_SIZE)


def _load(folder: Path, dtype: torch.dtype, device: torch.device) -> Any:
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa")
    return model.to(device).eval()


@torch.inference_mode()
def _reference(folder: Path, texts: list[list[int]], dtype: torch.dtype, device: torch.device) -> list[torch.Tensor]:
    model = _load(folder, dtype, device)
    return [model(torch.tensor([text], device=device)).logits[0].float() for text in texts]


def _in_pieces(folder: Path, texts: list[list[int]], dtype: torch.dtype, device: torch.device) -> list[torch.Tensor]:
    """All logits of each text, from steps that hold decodes, drafts and prefills side by side, over mixed-up blocks."""
    rng, runner = random.Random(2), _runner(folder, dtype, device)
    free = rng.sample(range(BLOCKS), BLOCKS)
    work = [_pieces(text, rng, [free.pop() for _ in range(-(-len(text) // BLOCK_SIZE))]) for text in texts]
    rows: list[list[torch.Tensor]] = [[] for _ in texts]
    left = set(range(len(texts)))
    while left:
        pieces = [(i, next(work[i], None)) for i in rng.sample(sorted(left), rng.randint(1, len(left)))]
        left -= {i for i, piece in pieces if piece is None}
        step = [(i, piece) for i, piece in pieces if piece is not None]
        # The runner's own memory, which the next step writes.
        found = runner.run(Batch([piece for _, piece in step])).clone()
        parts = torch.split(found, [len(piece.tokens) for _, piece in step])
        for (i, _), part in zip(step, parts, strict=True):
            rows[i].append(part)
    return [torch.cat(pieces_of_text) for pieces_of_text in rows]


def _pieces(text: list[int], rng: random.Random, blocks: list[int]) -> Iterator[SequenceInput]:
    start = 0
    while start < len(text):
        piece = text[start : start + rng.choice([1, 1, 2, 5, 16, 17, 100])]
        yield SequenceInput(piece, start, blocks, len(piece))
        start += len(piece)


def _mean_error(found: list[torch.Tensor], expected: list[torch.Tensor]) -> float:
    return float(torch.cat([(a - b).abs().mean(1) for a, b in zip(found, expected, strict=True)]).mean())


def _answers(folder: Path, texts: list[list[int]], count: int, device: torch.device, ahead: bool) -> list[list[int]]:
    served = ServedModel("tiny", _runner(folder, torch.float32, device))
    core = EngineCore([served], Scheduler(256, clock=time.time), Admission(64, 64, 1_000_000), run_ahead=ahead)
    for i, text in enumerate(texts):
        sampling = m.Sampling(temperature=0.8 * (i % 2), top_p=0.9, seed=i)
        core.apply(m.Open(i, "foreground"))
        core.apply(m.Append(i, text))
        core.apply(m.Generate(i, i, m.GenerateParams(count, sampling)))
    answers: list[list[int]] = [[] for _ in texts]
    while core.has_work:
        for item in core.step():
            if isinstance(item, m.Tokens):
                answers[item.generation] += item.tokens
    core.check_integrity()
    return answers
