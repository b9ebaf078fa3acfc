"""`midstream doctor`: is everything there that a server needs, and does the one that runs here work?"""

from __future__ import annotations

import asyncio
import platform
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import redis
from rich.console import Console
from rich.text import Text

from launch.data_folder import DataFolder
from launch.embedded_redis import embedded_url, valkey_binary
from launch.settings import LaunchSettings
from realtime import keys
from realtime.inbox import FIELD, stream_batches
from realtime.messages import ToolJob, ToolResult, decode_inbox
from realtime.redis_connection import connect_sync
from realtime.tool_queue import ToolQueue

CANARY_S = 10.0
HTTP_S = 3.0
DISK_FAIL_BYTES = 200 << 20
DISK_WARN_BYTES = 2 << 30

console = Console(highlight=False, soft_wrap=True)


class Status(StrEnum):
    OK = "OK"
    WARN = "WARN"
    FAIL = "FAIL"


@dataclass(frozen=True)
class Finding:
    """`advice` says what to do about a WARN or FAIL."""

    status: Status
    subject: str
    text: str
    advice: str = ""


COLOURS = {Status.OK: "green", Status.WARN: "yellow", Status.FAIL: "bold red"}


def doctor(settings: LaunchSettings, only: list[str]) -> int:
    """Prints one line per finding, of all checks or those named. The exit code is 1 if any of them is FAIL.

    Raises `KeyError` for a check that does not exist.
    """
    checks = all_checks(settings)
    failed = False
    for subject in only or checks:
        finding = _guarded(subject, checks[subject])
        failed |= finding.status is Status.FAIL
        line = Text.assemble((f"{finding.status:4} ", COLOURS[finding.status]), (f"{finding.subject:8} ", "bold"))
        console.print(line.append(finding.text))
        if finding.advice:
            console.print(Text(f"{'':14}-> {finding.advice}", "dim"))
    return int(failed)


def all_checks(settings: LaunchSettings) -> dict[str, Callable[[], Finding]]:
    folder = DataFolder(settings.data)
    url = settings.redis_url or embedded_url(folder)
    return {
        "python": check_python,
        "torch": check_torch,
        "model": check_model,
        "disk": lambda: check_disk(folder),
        "redis": lambda: check_redis(settings, url),
        "server": lambda: check_server(settings),
        "worker": lambda: check_worker(settings, url),
    }


def check_python() -> Finding:
    return Finding(Status.OK, "python", f"{platform.python_version()} at {sys.executable}")


def check_torch() -> Finding:
    import torch

    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        name = torch.cuda.get_device_name()
        return Finding(Status.OK, "torch", f"{torch.__version__} on {name}, {free >> 30} of {total >> 30} GiB free")
    text = f"{torch.__version__} on the CPU with {torch.get_num_threads()} threads"
    if shutil.which("nvidia-smi"):
        return Finding(Status.WARN, "torch", text, "there is a GPU driver: `make clean setup VARIANT=cuda` uses it")
    return Finding(Status.OK, "torch", text)


def check_model() -> Finding:
    from huggingface_hub import try_to_load_from_cache

    from engine.model.loader import ModelError, model_name
    from engine.settings import EngineSettings

    model = EngineSettings().model
    try:
        name = model_name(model)
    except ModelError as error:
        return Finding(Status.FAIL, "model", str(error), "set MIDSTREAM_MODEL, or run `make setup` for the default one")
    # For a local model the name is that of its file or folder; a hub id stays as it is.
    if name == model and not isinstance(try_to_load_from_cache(model, "config.json"), str):
        return Finding(Status.WARN, "model", f"{model} is not on this machine", "`midstream prepare` downloads it")
    return Finding(Status.OK, "model", name)


def check_disk(folder: DataFolder) -> Finding:
    free = shutil.disk_usage(folder.path).free
    text = f"{free / (1 << 30):.1f} GiB free for {folder.path}"
    advice = "free some space: conversations and converted models are written to disk"
    if free < DISK_FAIL_BYTES:
        return Finding(Status.FAIL, "disk", text, advice)
    return Finding(Status.WARN, "disk", text, advice) if free < DISK_WARN_BYTES else Finding(Status.OK, "disk", text)


def check_redis(settings: LaunchSettings, url: str) -> Finding:
    """An outside Redis must answer; the embedded one must at least be startable."""
    if settings.redis_url:
        try:
            with connect_sync(url) as client:
                info: Any = client.info()
                policy: Any = client.config_get("maxmemory-policy")
        except (redis.RedisError, ValueError) as error:
            return Finding(Status.FAIL, "redis", f"no answer: {error}", "start it, or correct MIDSTREAM_REDIS_URL")
        text = f"version {info['redis_version']} answers"
        if policy.get("maxmemory-policy", "noeviction") != "noeviction":
            return Finding(
                Status.WARN, "redis", f"{text}, but may evict keys", "set its maxmemory-policy to noeviction"
            )
        return Finding(Status.OK, "redis", text)
    if _answers(url):
        return Finding(Status.OK, "redis", "the embedded Valkey is running")
    try:
        version = subprocess.run([valkey_binary(), "--version"], capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError, RuntimeError) as error:
        advice = "install a Redis >= 7 and set MIDSTREAM_REDIS_URL"
        return Finding(Status.FAIL, "redis", f"the embedded Valkey does not run: {error}", advice)
    return Finding(Status.OK, "redis", f"embedded: {' '.join(version.stdout.split()[:3])}")


def check_server(settings: LaunchSettings) -> Finding:
    """Ready, not ready, or nobody there; a stranger on the port is a warning."""
    url = f"http://{settings.host}:{settings.port}"
    try:
        with urllib.request.urlopen(f"{url}/readyz", timeout=HTTP_S) as reply:
            ready = b'"ready"' in reply.read(65536)
    except urllib.error.HTTPError as error:
        body = error.read(65536).decode(errors="replace")
        if error.code == 503 and "missing" in body:
            return Finding(
                Status.FAIL, "server", f"{url} is not ready: {body[:200]}", "see the log of `midstream serve`"
            )
        ready = False
    except (OSError, ValueError):
        if _port_is_free(settings.host, settings.port):
            return Finding(Status.OK, "server", f"not running; {settings.host}:{settings.port} is free")
        ready = False
    if ready:
        return Finding(Status.OK, "server", f"{url} is ready")
    return Finding(Status.WARN, "server", f"something else answers at {url}", "choose another port with --port")


def check_worker(settings: LaunchSettings, url: str) -> Finding:
    """Sends a real tool job and waits for its result, as a node would."""
    if not settings.redis_url and not _answers(url):
        return Finding(Status.OK, "worker", "not checked: no server is running")
    name = f"doctor-{secrets.token_hex(6)}"
    queue = ToolQueue(url)
    with connect_sync(url) as client:
        try:
            started = time.monotonic()
            job = ToolJob(name, 1, name, "calculator", '{"expression": "6*7"}', time.time())
            asyncio.run(queue.send(job))
            if _result(client, name) == "42":
                return Finding(Status.OK, "worker", f"ran a tool in {(time.monotonic() - started) * 1000:.0f} ms")
        except Exception as error:
            return Finding(Status.FAIL, "worker", f"the tool queue does not work: {error}", "check Redis")
        finally:
            queue.close()
            client.delete(keys.node_inbox(name), keys.tool(name))
    return Finding(
        Status.FAIL,
        "worker",
        f"no worker ran a tool within {CANARY_S:g} s",
        "start one: `midstream serve --role worker`",
    )


def _result(client: redis.Redis, node: str) -> str:
    deadline = time.monotonic() + CANARY_S
    last: bytes | str = "0"
    while time.monotonic() < deadline:
        for _, entries in stream_batches(client.xread({keys.node_inbox(node): last}, block=500)):
            for entry_id, fields in entries:
                last = entry_id
                message = decode_inbox(fields[FIELD])
                if isinstance(message, ToolResult):
                    return message.output
    return ""


def _guarded(subject: str, check: Callable[[], Finding]) -> Finding:
    """A broken installation fails with whatever exception it likes."""
    try:
        return check()
    except Exception as error:
        return Finding(Status.FAIL, subject, f"{type(error).__name__}: {error}", "`make clean setup` installs anew")


def _answers(url: str) -> bool:
    try:
        with connect_sync(url) as client:
            return bool(client.ping())
    except (redis.RedisError, ValueError):
        return False


def _port_is_free(host: str, port: int) -> bool:
    try:
        with socket.create_server((host, port)):
            return True
    except OSError:
        return False
