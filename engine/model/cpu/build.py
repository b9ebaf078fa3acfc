"""Compiles the C++ kernels for this machine's processor, once: a few seconds at the first start."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

_SOURCES = Path(__file__).parent
_MAIN = "library.cpp"
_FLAGS = ["-O3", "-std=c++17", "-shared", "-fPIC", "-pthread", "-Wno-psabi"]
_COMPILERS = ("g++", "c++", "clang++")
_TIME_LIMIT_S = 300


class BuildError(Exception):
    """There is no compiler, or it failed; the transformers runner needs none."""


def build_kernels(cache: Path, compiler: str | None = None, architecture: str = "native") -> Path:
    """The shared library, compiled unless `cache` has it for these sources, this compiler and this processor.

    `architecture` is what `-march` is given.

    Raises `BuildError`.
    """
    found = compiler or next(filter(shutil.which, _COMPILERS), None)
    if found is None or shutil.which(found) is None:
        raise BuildError("there is no C++ compiler (g++ or clang++)")
    library = cache.expanduser() / "kernels" / f"{_fingerprint(found, architecture)}.so"
    if library.is_file():
        return library
    library.parent.mkdir(parents=True, exist_ok=True)
    with library.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.is_file():
            _compile(found, architecture, library)
    return library


def _compile(compiler: str, architecture: str, library: Path) -> None:
    """Writes next to `library` and renames, so that it is whole whenever it exists."""
    handle, partial = tempfile.mkstemp(suffix=".so", dir=library.parent)
    os.close(handle)
    try:
        done = subprocess.run(
            [compiler, f"-march={architecture}", *_FLAGS, "-o", partial, str(_SOURCES / _MAIN)],
            capture_output=True,
            text=True,
            timeout=_TIME_LIMIT_S,
            check=False,
        )
        if done.returncode != 0:
            raise BuildError(f"{compiler} cannot compile the kernels: {done.stderr[-2000:]}")
        os.rename(partial, library)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"{compiler} cannot compile the kernels: {error}") from error
    finally:
        Path(partial).unlink(missing_ok=True)


def _fingerprint(compiler: str, architecture: str) -> str:
    digest = hashlib.sha256()
    for source in sorted(_SOURCES.glob("*.h")) + [_SOURCES / _MAIN]:
        digest.update(source.read_bytes())
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, timeout=60, check=False)
    digest.update("\n".join([architecture, *_FLAGS, version.stdout, _processor()]).encode())
    return digest.hexdigest()[:20]


def _processor() -> str:
    """What `-march=native` depends on: a cache may be shared by machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")
