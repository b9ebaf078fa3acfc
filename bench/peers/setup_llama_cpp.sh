#!/usr/bin/env bash
# llama.cpp through its Python binding in its own environment: bench/peers/setup_llama_cpp.sh [FOLDER]
set -euo pipefail
folder=${1:-$HOME/.cache/midstream/peers/llama.cpp}
python3 -m venv --clear "$folder"

# Instruction sets are named one by one, because a build for "native" does not start on some virtual machines.
has() { grep -qw "$1" /proc/cpuinfo && echo ON || echo OFF; }
CMAKE_ARGS="-DGGML_NATIVE=OFF -DMTMD_BUILD=OFF"
CMAKE_ARGS+=" -DGGML_AVX2=$(has avx2) -DGGML_FMA=$(has fma) -DGGML_F16C=$(has f16c) -DGGML_BMI2=$(has bmi2)"
CMAKE_ARGS+=" -DGGML_AVX512=$(has avx512f) -DGGML_AVX512_VNNI=$(has avx512_vnni) -DGGML_AVX512_VBMI=$(has avx512vbmi)"
CMAKE_ARGS+=" -DGGML_AVX512_BF16=$(has avx512_bf16) -DGGML_AMX_TILE=$(has amx_tile) -DGGML_AMX_INT8=$(has amx_int8)"
CMAKE_ARGS+=" -DGGML_AMX_BF16=$(has amx_bf16)"
# GCC 12 takes the shapes of the AMX tiles for unused and drops them, and the first product is an illegal instruction.
CXXFLAGS="-fno-tree-dse -fno-dse"
CMAKE_BUILD_PARALLEL_LEVEL=$(nproc)
export CMAKE_ARGS CXXFLAGS CMAKE_BUILD_PARALLEL_LEVEL
# Not a build for other flags from pip's cache.
"$folder/bin/pip" install -qq --no-cache-dir --no-binary llama-cpp-python llama-cpp-python==0.3.36
"$folder/bin/python" -c 'import llama_cpp; print("llama.cpp binding", llama_cpp.__version__)'
