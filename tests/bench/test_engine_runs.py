"""A peer in a process of its own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from bench import engine_runs
from bench.engine_process import EngineFailed, EngineProcess
from bench.engine_runs import PEERS, Peer

SCRIPT = f"""
import sys, time
sys.path.insert(0, {str(PEERS)!r})
from protocol import serve

def load(model, way):
    print("a library greets")
    return f"{{model}} {{way}}", run

def run(prompts, new_tokens):
    if new_tokens == 0:
        raise ValueError("nothing to do")
    if new_tokens < 0:
        time.sleep(60)
    return [len(ids) / 100 for ids in prompts], new_tokens / 10

serve(load)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    file = tmp_path / "peer.py"
    file.write_text(SCRIPT)
    return file


@pytest.fixture
def peer(script: Path) -> Iterator[Peer]:
    peer = Peer(Path(sys.executable), script, "model", "fast")
    yield peer
    peer.close()


def test_a_peer_says_its_version_and_times_its_requests(peer: Peer) -> None:
    assert peer.version == "model fast"
    timing = peer.run([[1, 2], [3]], 5)
    assert timing.first_s == [0.02, 0.01]
    assert timing.total_s == 0.5


def test_a_paused_peer_does_not_run_and_goes_on_afterwards(peer: Peer) -> None:
    peer.process.pause()
    assert psutil.Process(peer.process.pid).status() == psutil.STATUS_STOPPED
    peer.process.go_on()
    assert peer.run([[1]], 1).total_s == 0.1


def test_a_peer_that_ends_is_an_error_with_the_end_of_its_log(peer: Peer) -> None:
    with pytest.raises(EngineFailed, match="nothing to do"):
        peer.run([[1]], 0)
    with pytest.raises(EngineFailed):
        peer.run([[1]], 1)


def test_a_peer_that_does_not_answer_is_an_error(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_runs, "RUN_LIMIT_S", 0.05)
    with pytest.raises(EngineFailed, match="said nothing"):
        peer.run([[1]], -1)


def test_a_peer_that_does_not_start_is_an_error(script: Path) -> None:
    with pytest.raises(EngineFailed, match="missing 1 required positional argument"):
        Peer(Path(sys.executable), script, "model")


def test_a_missing_environment_says_what_makes_it(tmp_path: Path, script: Path) -> None:
    with pytest.raises(EngineFailed, match="bench/peers/"):
        Peer(tmp_path / "bin/python", script)


def test_waiting_for_a_process_that_ended_is_an_error() -> None:
    process = EngineProcess([sys.executable, "-c", "raise SystemExit('no model')"], {})
    with pytest.raises(EngineFailed, match="no model"):
        process.wait_for("listening on", 60)
    process.end()
