"""The official SDK, unmodified and of whatever version is installed, against a whole server that `make compat` runs.

Nothing but the SDK and pytest may be imported here.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import openai
import pytest

URL = os.environ.get("MIDSTREAM_COMPAT_URL", "")
# The ordinary test run has no server for these.
collect_ignore_glob = [] if URL else ["*"]


@pytest.fixture
def client() -> Iterator[openai.OpenAI]:
    # Without the second address 1.109.1 takes wss, whatever the first one says.
    addresses: Any = {"base_url": f"{URL}/v1", "websocket_base_url": f"{URL.replace('http', 'ws', 1)}/v1"}
    with openai.OpenAI(**addresses, api_key="any", max_retries=0, timeout=120) as client:
        yield client


@pytest.fixture
def parameters() -> dict[str, Any]:
    """The JSON schema of a function's arguments."""
    return {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}},
        "required": ["city"],
        "additionalProperties": False,
    }
