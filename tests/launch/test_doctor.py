from __future__ import annotations

import socket
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from launch.data_folder import DataFolder
from launch.doctor import Status, check_disk, check_model, check_redis, check_server, check_torch, check_worker, doctor
from launch.embedded_redis import embedded_url
from launch.settings import LaunchSettings
from tests.workers.worker_process import Worker


class Health(BaseHTTPRequestHandler):
    status, body = 200, b'{"status": "ready"}'

    def do_GET(self) -> None:
        self.send_response(self.status)
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


def server_finding(status: int, body: bytes) -> tuple[Status, str]:
    handler = type("Handler", (Health,), {"status": status, "body": body})
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.handle_request)
        thread.start()
        finding = check_server(LaunchSettings(port=server.server_port))
        thread.join()
    return finding.status, finding.text


def test_a_ready_server_is_ok() -> None:
    status, text = server_finding(200, b'{"status": "ready"}')
    assert (status, text.split()[-1]) == (Status.OK, "ready")


def test_a_server_that_is_not_ready_fails_with_what_is_missing() -> None:
    status, text = server_finding(503, b'{"status": "unavailable", "missing": {"node": "none"}}')
    assert status is Status.FAIL
    assert '"node"' in text


@pytest.mark.parametrize(("status", "body"), [(200, b"hello"), (404, b"")])
def test_a_stranger_on_the_port_is_a_warning(status: int, body: bytes) -> None:
    assert server_finding(status, body)[0] is Status.WARN


def test_a_free_port_is_ok() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    finding = check_server(LaunchSettings(port=port))
    assert (finding.status, finding.text) == (Status.OK, f"not running; 127.0.0.1:{port} is free")


def test_the_embedded_redis_can_be_started(tmp_path: Path) -> None:
    finding = check_redis(LaunchSettings(), embedded_url(DataFolder(tmp_path)))
    assert finding.status is Status.OK
    assert finding.text.startswith("embedded:")


def test_an_outside_redis_that_does_not_answer_fails() -> None:
    finding = check_redis(LaunchSettings(redis_url="redis://127.0.0.1:9"), "redis://127.0.0.1:9")
    assert finding.status is Status.FAIL
    assert "MIDSTREAM_REDIS_URL" in finding.advice


def test_a_missing_model_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIDSTREAM_MODEL", "/nowhere/model.gguf")
    finding = check_model()
    assert finding.status is Status.FAIL
    assert "MIDSTREAM_MODEL" in finding.advice


def test_a_hub_model_that_is_not_here_yet_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIDSTREAM_MODEL", "example/never-downloaded")
    assert check_model().status is Status.WARN


def test_torch_and_disk_are_found(tmp_path: Path) -> None:
    assert check_torch().status is not Status.FAIL
    assert str(tmp_path) in check_disk(DataFolder(tmp_path)).text


def test_the_exit_code_tells_of_a_failure(tmp_path: Path) -> None:
    settings = LaunchSettings(data=tmp_path, redis_url="redis://127.0.0.1:9")
    assert doctor(settings, ["python"]) == 0
    assert doctor(settings, ["python", "redis"]) == 1


def test_without_a_worker_the_canary_fails(data: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launch.doctor.CANARY_S", 0.2)
    finding = check_worker(LaunchSettings(data=data, redis_url=redis_url), redis_url)
    assert finding.status is Status.FAIL
    assert "--role worker" in finding.advice


def test_a_worker_passes_the_canary(data: Path, redis_url: str, worker: Worker) -> None:
    finding = check_worker(LaunchSettings(data=data, redis_url=redis_url), redis_url)
    assert finding.status is Status.OK
