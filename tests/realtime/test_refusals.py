"""What a refused event tells its client."""

from __future__ import annotations

from typing import Any

import pytest

from realtime.conversation import Conversation
from realtime.errors import ProtocolError
from realtime.events import parse_client_event
from realtime.session import Session
from realtime.session_config import SessionConfig


def _refusal(session: Session, event: str) -> dict[str, Any]:
    with pytest.raises(ProtocolError) as refusal:
        session.handle(parse_client_event(event))
    error: dict[str, Any] = refusal.value.to_event()["error"]
    return error


def test_a_revision_conflict_carries_the_revision_that_the_buffer_is_at() -> None:
    session = Session("sess_1", SessionConfig(model="m"), Conversation())
    session.handle(parse_client_event('{"type": "input_text_buffer.append", "text": "a"}'))
    error = _refusal(session, '{"type": "input_text_buffer.append", "text": "b", "base_revision": 7, "event_id": "e"}')
    assert (error["code"], error["revision"], error["event_id"]) == ("revision_conflict", 1, "e")


@pytest.mark.parametrize(("event_type", "root"), [("session.update", "session"), ("response.create", "response")])
def test_an_unknown_tool_is_blamed_on_the_parameter_that_named_it(event_type: str, root: str) -> None:
    session = Session("sess_1", SessionConfig(model="m"), Conversation())
    tools = '{"tools": [{"type": "mcp", "server_label": "midstream", "allowed_tools": ["no_such_tool"]}]}'
    error = _refusal(session, f'{{"type": "{event_type}", "{root}": {tools}}}')
    assert (error["code"], error["param"]) == ("tool_not_found", f"{root}.tools")
