"""Settings of the web process."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

CommaList = Annotated[list[str], NoDecode]


class WebSettings(BaseSettings):
    """Read from `MIDSTREAM_*`. Lists are comma separated. Times are seconds, sizes bytes."""

    model_config = SettingsConfigDict(env_prefix="MIDSTREAM_", extra="ignore")

    host: str = "127.0.0.1"
    port: int = Field(default=8080, ge=0, le=65535)
    redis_url: str = "redis://127.0.0.1:6379/0"
    api_keys: CommaList = []
    """Empty: any key or none, but only from this machine."""
    allowed_origins: CommaList = []
    """Origins, such as https://chat.example.org, allowed beside the server's own."""

    max_connections: int = Field(default=2000, ge=1)
    max_completions: int = Field(default=256, ge=1)
    frame_limit: int = Field(default=256 * 1024, ge=1024)
    body_limit: int = Field(default=1024 * 1024, ge=1024)
    send_queue_events: int = Field(default=4096, ge=16)
    send_queue_bytes: int = Field(default=4 * 1024 * 1024, ge=1024)
    session_retention_s: int = Field(default=7 * 24 * 3600, ge=60)
    """How long a stored response is kept after its last use, as sessions are."""
    redis_timeout_s: float = Field(default=5.0, gt=0)
    keepalive_s: float = Field(default=10.0, gt=0)
    ping_s: float = Field(default=20.0, gt=0)
    shutdown_s: int = Field(default=5, ge=1)

    @field_validator("api_keys", "allowed_origins", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        if isinstance(value, str):
            return [part.strip() for part in value.split(",") if part.strip()]
        return value
