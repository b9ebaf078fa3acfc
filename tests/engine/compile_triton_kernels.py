"""Compiles the Triton kernels for sizes of Llama-3.1-8B and prints the name of each; run by its test."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

sys.path.insert(0, str(Path(__file__).parents[2]))

from engine.model import layer_ops_triton as layer
from engine.model import paged_attention_triton as attention

TYPES = {
    **dict.fromkeys(("table", "starts", "positions"), "*i32"),
    **dict.fromkeys(("partial", "sums", "cos", "sin"), "*fp32"),
    **dict.fromkeys(("scale", "eps"), "fp32"),
    **dict.fromkeys(("size", "inputs", "outputs"), "i32"),
    "slots": "*i64",
}
DOT: dict[str, int] = {"HEADS": 32, "KV_HEADS": 8, "DIM": 128, "PADDED_DIM": 128, "PADDED_GROUPS": 16}


def compile_one(kernel: Any, **constants: Any) -> None:
    """All arguments that are not constants: pointers to bfloat16 unless `TYPES` says otherwise."""
    signature, fixed = {}, {}
    for index, name in enumerate(kernel.arg_names):
        signature[name] = "constexpr" if name in constants else TYPES.get(name, "*bf16")
        if name in constants:
            fixed[(index,)] = constants[name]
    triton.compile(ASTSource(kernel, signature, fixed), target=GPUTarget("cuda", 90, 32))
    print(kernel.fn.__name__)


for splits in (1, 32):
    compile_one(attention._attend_kernel, **DOT, BLOCK_SIZE=16, TILE=64, SPLITS=splits)
compile_one(attention._combine_kernel, DIM=128, PADDED_DIM=128, SPLITS=32)
compile_one(layer._vector_kernel, BIASED=True, OUTPUTS=8, INPUTS=1024)
compile_one(layer._add_norm_kernel, ADDS=True, SIZE=4096)
compile_one(layer._gate_kernel, TILE=1024)
compile_one(layer._rotate_kernel, NORMED=True, QUERY=32, KV=8, HALF=64, PADDED_HALF=64, TILE=8)
