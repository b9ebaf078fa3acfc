"""A model split over two processes answers like the whole one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from transformers import Phi3Config

from engine import messages as m
from engine.client import EngineClient
from engine.model.loader import ModelError, load_model
from tests.engine.conftest import save_tiny
from tests.engine.driver import load_reference, reference_greedy
from tests.engine.test_process import LIMIT, PROMPT, collect

START_LIMIT = 120


def start(model: Path, path: Path, size: int) -> subprocess.Popen[str]:
    settings = {
        "MIDSTREAM_MODEL": str(model),
        "MIDSTREAM_KV_TOKENS": "2048",
        "MIDSTREAM_DTYPE": "float32",
        "MIDSTREAM_TENSOR_PARALLEL": str(size),
    }
    return subprocess.Popen(
        [sys.executable, "-m", "engine.process", "--socket", str(path)],
        cwd=Path(__file__).parents[2],
        env=os.environ | settings,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for(process: subprocess.Popen[str], word: str) -> list[str]:
    assert process.stderr is not None
    log = []
    for line in process.stderr:
        log.append(line)
        if word in line:
            return log
    raise AssertionError(f"no {word!r} in {log}")


async def test_two_ranks_answer_like_one_and_end_with_the_first(tmp_path: Path) -> None:
    folder = save_tiny("qwen3", tmp_path / "model")
    process = start(folder, tmp_path / "engine.sock", 2)
    try:
        wait_for(process, "listening")
        client = await EngineClient.connect(tmp_path / "engine.sock", LIMIT)
        reference: Any = load_reference(folder)
        handles = [client.open("foreground") for _ in range(3)]
        generations = []
        for i, handle in enumerate(handles):
            handle.append(PROMPT[i:])
            generations.append(handle.generate(m.GenerateParams(15)))
        for i, generation in enumerate(generations):
            assert await collect(generation) == reference_greedy(reference, PROMPT[i:], 15)
        await client.aclose()
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=START_LIMIT)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def test_heads_that_cannot_be_shared_out_are_refused(tmp_path: Path) -> None:
    process = start(save_tiny("llama", tmp_path / "model"), tmp_path / "engine.sock", 3)
    try:
        assert any("cannot be split over 3 devices" in line for line in wait_for(process, "cannot be split"))
        process.communicate(timeout=START_LIMIT)
        assert process.returncode != 0
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def children_of(pid: int) -> list[psutil.Process]:
    return [child for child in psutil.Process(pid).children(recursive=True) if "engine.process" in child.cmdline()]


@pytest.mark.parametrize("victim", ["rank 0", "rank 1", "torchrun"])
def test_no_rank_outlives_another(victim: str, tmp_path: Path) -> None:
    process = start(save_tiny("llama", tmp_path / "model"), tmp_path / "engine.sock", 2)
    try:
        wait_for(process, "listening")
        ranks = sorted(children_of(process.pid), key=lambda rank: rank.environ()["RANK"])
        assert len(ranks) == 2
        {"rank 0": ranks[0], "rank 1": ranks[1], "torchrun": psutil.Process(process.pid)}[victim].kill()
        process.communicate(timeout=START_LIMIT)
        assert process.returncode != 0
        assert psutil.wait_procs(ranks, timeout=START_LIMIT)[1] == []
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def test_a_plan_that_does_not_split_heads_is_refused(tmp_path: Path) -> None:
    config = Phi3Config(hidden_size=32, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=1)
    config.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="no plan to split"):
        load_model(tmp_path, torch.float32, torch.device("cpu"), lambda stage, fraction: None, 2)
