"""Settings of the launcher; `docs/configuration.md` lists those of every package."""

from __future__ import annotations

import socket
from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class LaunchSettings(BaseSettings):
    """Read from `MIDSTREAM_*`. An empty `redis_url` means the embedded Valkey. Port 0 means any free one."""

    model_config = SettingsConfigDict(env_prefix="MIDSTREAM_", extra="ignore", validate_default=True)

    host: str = "127.0.0.1"
    port: int = Field(default=8080, ge=0, le=65535)
    data: Path = Path(".midstream")
    redis_url: str = ""
    node_id: str = Field(default_factory=socket.gethostname, pattern=r"^[A-Za-z0-9_.-]{1,64}$")
    start_timeout: float = Field(default=900.0, gt=0)
    stop_grace: float = Field(default=10.0, gt=0)
