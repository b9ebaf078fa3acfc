"""Settings of the tool workers."""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class WorkerSettings(BaseSettings):
    """Read from `MIDSTREAM_*`."""

    model_config = SettingsConfigDict(env_prefix="MIDSTREAM_", extra="ignore")

    redis_url: str = "redis://127.0.0.1:6379/0"
    worker_concurrency: int = Field(default=2, ge=1)
    worker_log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "WARNING"
