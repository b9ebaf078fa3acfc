"""The container files, as far as they can be checked without a container engine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
FILES = ["docker-compose.yml", "docker-compose.cuda.yml"]


def load(name: str) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((ROOT / name).read_text())
    return content


@pytest.mark.parametrize("name", FILES)
def test_the_files_follow_the_compose_specification(name: str) -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(ROOT / name)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout


def test_every_part_is_a_service_of_its_own_with_a_health_check() -> None:
    services = load("docker-compose.yml")["services"]
    assert set(services) == {"redis", "web", "node", "worker"}
    assert all("healthcheck" in service for service in services.values())
    for role in ("web", "node", "worker"):
        assert services[role]["command"][:3] == ["serve", "--role", role]
        assert services[role]["depends_on"]["redis"]["condition"] == "service_healthy"
        assert services[role]["environment"]["MIDSTREAM_REDIS_URL"] == "redis://redis:6379/0"


def test_the_override_reserves_a_gpu_for_the_node() -> None:
    (device,) = load("docker-compose.cuda.yml")["services"]["node"]["deploy"]["resources"]["reservations"]["devices"]
    assert device["capabilities"] == ["gpu"]


def test_redis_keeps_what_it_is_given() -> None:
    command = load("docker-compose.yml")["services"]["redis"]["command"]
    assert command[command.index("--appendonly") + 1] == "yes"
    assert command[command.index("--maxmemory-policy") + 1] == "noeviction"


def test_the_image_does_not_run_as_root() -> None:
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    last_stage = lines[max(number for number, line in enumerate(lines) if line.startswith("FROM")) :]
    assert "USER midstream" in last_stage


@pytest.mark.parametrize("name", ["cpu.txt", "cuda.txt", "dev.txt"])
def test_lock_files_pin_everything_and_name_no_index(name: str) -> None:
    for line in (ROOT / "requirements" / name).read_text().splitlines():
        if not line.startswith("#"):
            assert "==" in line
        assert "://" not in line
