"""The replay on a real engine process with a tiny model, and the loop that drives the peer."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.engine_process import EngineFailed
from bench.engine_runs import PEERS
from bench.interception import replay
from bench.interception.replay import MidstreamReplayer, random_text
from bench.interception.replays import BadOption, Options, run
from bench.interception.workload import Request, Turn
from tests.engine.conftest import VOCAB, save_tiny

LIMIT_S = 60.0
CALLING = Request("qa", (Turn(20, 5, "search", 0.05), Turn(0, 3, "search", 0.0), Turn(4, 6)), 0, 0.0)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MidstreamReplayer]:
    folder = save_tiny("llama", tmp_path_factory.mktemp("tiny"))
    settings = {"MIDSTREAM_MODEL": str(folder), "MIDSTREAM_KV_TOKENS": "128", "MIDSTREAM_DTYPE": "float32"}
    engine = MidstreamReplayer(settings)
    yield engine
    engine.close()


@pytest.fixture(autouse=True)
def tiny_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "FIRST_TEXT_TOKEN", 3)
    monkeypatch.setattr(replay, "LAST_TEXT_TOKEN", VOCAB)


def test_every_request_is_completed_with_less_memory_than_all_want(engine: MidstreamReplayer) -> None:
    requests = [Request("qa", CALLING.turns, number, 0.01 * number) for number in range(12)]
    seen = engine.replay(requests, 1, LIMIT_S)
    assert [one.request.number for one in seen.outcomes] == list(range(12))
    for one in seen.outcomes:
        assert one.end_s is not None
        assert one.first_token_s is not None
        assert 0 < one.first_token_s < one.end_s <= seen.window_s
        assert one.end_s >= one.request.tool_s


def test_a_replay_ends_when_its_time_is_up(engine: MidstreamReplayer) -> None:
    seen = engine.replay([Request("qa", (Turn(5, 5),), 0, 0.0), Request("qa", (Turn(5, 5),), 1, 500.0)], 1, 1.0)
    assert seen.outcomes[0].end_s is not None
    assert seen.outcomes[1].end_s is None
    assert 1.0 <= seen.window_s < 10.0


def test_a_refused_request_is_an_error(engine: MidstreamReplayer) -> None:
    with pytest.raises(EngineFailed, match="request 0: .*the limit is 128"):
        engine.replay([Request("qa", (Turn(500, 5),))], 1, LIMIT_S)


def test_an_engine_that_does_not_start_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(EngineFailed, match="did not start"):
        MidstreamReplayer({"MIDSTREAM_MODEL": str(tmp_path / "none.gguf")})


def test_texts_are_the_same_for_all_engines_and_different_for_each_turn() -> None:
    assert random_text(1, 2, 0, 30) == random_text(1, 2, 0, 30)
    assert len({tuple(random_text(1, index, turn, 30)) for index in range(5) for turn in range(5)}) == 25


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (Options(["ours"], 0.0, 5), "the rate"),
        (Options(["ours"], 1.0, 5, weights="fp8"), "weights are one of"),
        (Options(["ours"], 1.0, 5, peers=["sglang"]), "the only peer"),
        (Options(["ours"], 1.0, 50, kv_tokens=100), "does not fit"),
    ],
)
def test_a_wrong_option_is_named(options: Options, problem: str) -> None:
    with pytest.raises(BadOption, match=problem):
        run(options, lambda line: None)


class ScriptedEngine:
    """Says one token for each request in each step, and has all but 3 tokens of a text in its cache."""

    def __init__(self) -> None:
        self.texts: list[list[int]] = []
        self._running: dict[str, tuple[int, list[int]]] = {}

    def add_request(self, name: str, prompt: dict[str, list[int]], params: dict[str, Any]) -> None:
        self.texts.append(prompt["prompt_token_ids"])
        self._running[name] = (params["max_tokens"], [])

    def has_unfinished_requests(self) -> bool:
        return bool(self._running)

    def step(self) -> list[SimpleNamespace]:
        outputs = []
        for name, (wanted, said) in list(self._running.items()):
            said.append(7)
            finished = len(said) == wanted
            if finished:
                del self._running[name]
            output = SimpleNamespace(token_ids=list(said))
            cached = len(self.texts[-1]) - 3
            outputs.append(
                SimpleNamespace(request_id=name, outputs=[output], finished=finished, num_cached_tokens=cached)
            )
        return outputs


def test_the_peer_gets_the_whole_text_again_when_a_tool_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(PEERS))
    peer = importlib.import_module("vllm_replay")
    engine = ScriptedEngine()
    turns = [{"tokens": [1, 2], "generate": 2, "tool_s": 0.01}, {"tokens": [3], "generate": 1, "tool_s": 0.0}]
    ended = peer.Replay(engine, dict, [{"arrival_s": 0.0, "turns": turns}], 30.0)
    window_s = ended.run()
    assert engine.texts == [[1, 2], [1, 2, 7, 7, 3]]
    ((first_s, end_s),) = ended.outcomes
    assert 0 < first_s < end_s <= window_s
    assert end_s >= 0.01
    # Three tokens had been computed and two were in the cache.
    assert ended.recomputed_tokens == 1
