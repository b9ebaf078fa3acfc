"""Settings of the session host and of the Redis shells that web, host and workers share."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class RealtimeSettings(BaseSettings):
    """Read from `MIDSTREAM_*`. Times are seconds unless the name says otherwise."""

    model_config = SettingsConfigDict(env_prefix="MIDSTREAM_", extra="ignore")

    redis_url: str = "redis://127.0.0.1:6379/0"
    node_id: str = "node-1"
    engine_socket: Path = Path(".midstream/run/engine.sock")
    model: str = "default"
    model_cache: Path = Path("~/.cache/midstream")

    max_output_tokens: int = Field(default=1024, ge=1)
    max_sessions: int = Field(default=1024, ge=1)
    session_idle_s: float = Field(default=900.0, gt=0)
    session_retention_s: int = Field(default=7 * 24 * 3600, ge=60)
    event_log_length: int = Field(default=2000, ge=100)
    event_log_ttl_s: int = Field(default=3600, ge=60)
    engine_wait_s: float = Field(default=30.0, gt=0)
    tool_queue_wait_s: float = Field(default=30.0, gt=0)
    max_tool_calls: int = Field(default=8, ge=1)
    settle_s: float = Field(default=0.25, gt=0)
    max_notes: int = Field(default=32, ge=0)
    draft_pause_s: float = Field(default=0.3, gt=0)
    max_drafts: int = Field(default=8, ge=0)
    max_speculative_calls: int = Field(default=4, ge=0)
