from __future__ import annotations

from pathlib import Path

import pytest
from pydantic_settings import BaseSettings

from engine.settings import EngineSettings
from launch.settings import LaunchSettings
from realtime.settings import RealtimeSettings
from web.settings import WebSettings
from workers.settings import WorkerSettings

DOCUMENT = Path(__file__).parents[2] / "docs" / "configuration.md"


@pytest.mark.parametrize("settings", [EngineSettings, LaunchSettings, RealtimeSettings, WebSettings, WorkerSettings])
def test_every_setting_is_documented(settings: type[BaseSettings]) -> None:
    text = DOCUMENT.read_text()
    missing = [name for name in settings.model_fields if f"`MIDSTREAM_{name.upper()}`" not in text]
    assert missing == []
