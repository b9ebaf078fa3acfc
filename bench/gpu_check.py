"""Checks and measures the native CUDA runner on the GPU of this machine; started by `gpu_check.sh`.

Each part is a process with a time limit of its own, so that a fault or a hang costs that part only; what a part has
found by then counts. With `--dry-run` all parts run in tiny sizes on the CPU, where they prove nothing but that the
script works.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

LIMITS_S = {"logits": 100, "run_ahead": 60, "swap": 40, "native": 130, "transformers": 140}
"""The parts in their order, and the longest that each may take."""
WHOLE_S = 480
TARGETS = {"decode_share": 0.75, "prefill_share": 0.55, "decode_x_transformers": 1.0, "prefill_x_transformers": 1.0}
_PREFIX = "result "
_ERROR_CHARACTERS = 2000


def emit(name: str, value: Any) -> None:
    """For a part: hands one result to the process that reports."""
    print(f"{_PREFIX}{json.dumps({name: value})}", flush=True)


def run_part(command: Sequence[str], limit_s: float, say: Callable[[str], None]) -> dict[str, Any]:
    """Runs a part and kills it after `limit_s`. Its results, with `ok`, `seconds` and, if not ok, an `error`."""
    started = time.monotonic()
    results: dict[str, Any] = {}
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        timer = threading.Timer(limit_s, process.kill)
        timer.start()
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(_PREFIX):
                result = json.loads(line.removeprefix(_PREFIX))
                results |= result
                say(f"  {json.dumps(result)}")
        code = process.wait()
        timer.cancel()
        seconds = time.monotonic() - started
        errors.seek(0)
        error = errors.read()[-_ERROR_CHARACTERS:] if code else ""
    if code and seconds >= limit_s:
        error = f"killed after {limit_s:.0f} s\n{error}"
    return results | {"ok": not code, "seconds": round(seconds, 1)} | ({"error": error} if code else {})


def summary(parts: dict[str, dict[str, Any]]) -> dict[str, float]:
    """What the figures of the parts say together; only what has been measured."""
    native, peer = parts.get("native", {}), parts.get("transformers", {})
    figures: dict[str, float] = {name: native[name] for name in ("decode_share", "prefill_share") if name in native}
    if "decode_tokens_per_s" in native and "decode_tokens_per_s" in peer:
        figures["decode_x_transformers"] = native["decode_tokens_per_s"] / peer["decode_tokens_per_s"]
    if "prefill_s" in native and "prefill_s" in peer:
        figures["prefill_x_transformers"] = peer["prefill_s"] / native["prefill_s"]
    return figures


def check(dry_run: bool, say: Callable[[str], None]) -> dict[str, Any]:
    """Runs all parts; the report."""
    deadline = time.monotonic() + WHOLE_S
    parts: dict[str, dict[str, Any]] = {}
    for name, limit in LIMITS_S.items():
        say(name)
        command = [sys.executable, "-m", "bench.gpu_check", "--part", name, *(["--dry-run"] if dry_run else [])]
        parts[name] = run_part(command, max(min(limit, deadline - time.monotonic()), 1.0), say)
        say(f"  {'ok' if parts[name]['ok'] else 'FAILED: ' + parts[name]['error']} ({parts[name]['seconds']} s)")
    figures = summary(parts)
    for name, target in TARGETS.items():
        if name in figures and not dry_run:
            say(f"{name}: {figures[name]:.2f}, wanted {target:.2f}")
    return {"dry_run": dry_run, "parts": parts, "summary": figures}


def main() -> None:
    """Exits with 1 if a part failed. Whether a figure meets its target is for the reader."""
    parser = argparse.ArgumentParser(prog="bench/gpu_check.sh", description=__doc__)
    parser.add_argument("--json", type=Path, default=Path("gpu_check.json"), help="where the report is written")
    parser.add_argument("--dry-run", action="store_true", help="tiny sizes on the CPU")
    parser.add_argument("--part", choices=LIMITS_S, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.part is not None:
        from bench import gpu_parts

        gpu_parts.run(arguments.part, arguments.dry_run, emit)
        return
    report = check(arguments.dry_run, lambda line: print(line, flush=True))
    arguments.json.write_text(json.dumps(report, indent=2) + "\n")
    print(f"written to {arguments.json}")
    if not all(part["ok"] for part in report["parts"].values()):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
