#!/usr/bin/env bash
# On a machine with an NVIDIA GPU: are our kernels right, and how near do they come to what the GPU can do? 8 minutes.
#   bench/gpu_check.sh [--json FILE] [--dry-run]
# Uses .venv, or $PYTHON; a missing .venv is made with the packages of requirements/cuda.txt. No model is downloaded.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
if ! command -v "$python" >/dev/null; then
    python3 -m venv .venv
    .venv/bin/python -m pip --disable-pip-version-check install --quiet --no-deps -r requirements/cuda.txt
fi
HF_HUB_OFFLINE=1 exec "$python" -m bench.gpu_check "$@"
