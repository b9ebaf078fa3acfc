"""`make compat`: starts one server and runs this folder's tests against it with each version of the official SDK."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from bench.server import running_server

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


def main(versions: list[str]) -> int:
    """0 when the tests pass with all versions; each has a virtual environment of its own, `.venv-compat-VERSION`."""
    failed = []
    # Exact arithmetic makes answers repeatable.
    with running_server(dtype="float32", max_output_tokens="96") as server:
        for version in versions:
            print(f"openai {version}", flush=True)
            python = ROOT / f".venv-compat-{version}" / "bin" / "python"
            command = [str(python), "-m", "pytest", "-q", "-c", str(HERE / "pytest.ini"), str(HERE)]
            environment = os.environ | {"MIDSTREAM_COMPAT_URL": server.url, "PYTHONDONTWRITEBYTECODE": "1"}
            if subprocess.run(command, env=environment, check=False).returncode:
                failed.append(version)
    if failed:
        print(f"failed with openai {', '.join(failed)}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
