#!/usr/bin/env bash
# llama.cpp through its Python binding in its own environment: bench/peers/setup_llama_cpp.sh [FOLDER]
set -euo pipefail
folder=${1:-$HOME/.cache/midstream/peers/llama.cpp}
python3 -m venv "$folder"
# Instruction sets are named one by one, because a build for "native" does not start on some virtual machines.
export CMAKE_ARGS="-DGGML_NATIVE=OFF -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON -DGGML_AVX512=ON -DGGML_AVX512_VNNI=ON -DGGML_AVX512_VBMI=ON"
export CMAKE_BUILD_PARALLEL_LEVEL=2
"$folder/bin/pip" install -qq llama-cpp-python
"$folder/bin/python" -c 'import llama_cpp; print("llama.cpp binding", llama_cpp.__version__)'
