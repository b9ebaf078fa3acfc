"""The session core: client events in, effects out."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from realtime.conversation import Conversation, Message
from realtime.errors import ProtocolError
from realtime.events import parse_client_event
from realtime.session import (
    CancelResponse,
    Committed,
    Configured,
    Deleted,
    Edited,
    Effect,
    Respond,
    Saved,
    Send,
    Session,
)
from realtime.session_config import SessionConfig

CALCULATOR = {"type": "mcp", "server_label": "midstream", "allowed_tools": ["calculator"], "require_approval": "never"}
FORCED = {"type": "mcp", "server_label": "midstream", "name": "calculator"}


@pytest.fixture
def session() -> Session:
    return Session("sess_1", SessionConfig(model="tiny"), Conversation())


def do(session: Session, event_type: str, /, **fields: Any) -> list[Effect]:
    return session.handle(parse_client_event(json.dumps({"type": event_type, **fields})))


def sent(effects: list[Effect]) -> list[str]:
    return [effect.event["type"] for effect in effects if isinstance(effect, Send)]


def code_of(session: Session, event_type: str, /, **fields: Any) -> str:
    with pytest.raises(ProtocolError) as caught:
        do(session, event_type, event_id="mine", **fields)
    assert caught.value.event_id == "mine"
    return caught.value.code


def test_append_changes_the_buffer_and_is_not_acknowledged(session: Session) -> None:
    assert do(session, "input_text_buffer.append", text="Hel") == [Edited()]
    assert do(session, "input_text_buffer.append", text="lo") == [Edited()]
    assert session.buffer.text == "Hello"


def test_replace_splices_a_range(session: Session) -> None:
    do(session, "input_text_buffer.append", text="cats and hats")
    assert do(session, "input_text_buffer.replace", text="dogs", start=0, end=4) == [Edited()]
    assert session.buffer.text == "dogs and hats"


def test_clear_is_acknowledged(session: Session) -> None:
    do(session, "input_text_buffer.append", text="x")
    effects = do(session, "input_text_buffer.clear")
    assert effects[0] == Edited()
    assert sent(effects) == ["input_text_buffer.cleared"]


def test_commit_makes_a_user_item_and_no_response(session: Session) -> None:
    do(session, "input_text_buffer.append", text="Hi")
    effects = do(session, "input_text_buffer.commit")
    assert sent(effects) == ["input_text_buffer.committed", "conversation.item.added", "conversation.item.done"]
    (item,) = session.conversation
    assert isinstance(item, Message)
    assert item.text == "Hi"
    assert Committed(item) in effects
    assert Saved(item, order=True) in effects
    assert not any(isinstance(effect, Respond) for effect in effects)
    assert session.buffer.text == ""


def test_text_given_at_commit_wins(session: Session) -> None:
    do(session, "input_text_buffer.append", text="Helo")
    do(session, "input_text_buffer.commit", text="Hello")
    assert [item.text for item in session.conversation if isinstance(item, Message)] == ["Hello"]


def test_commit_of_an_empty_buffer_is_an_error(session: Session) -> None:
    assert code_of(session, "input_text_buffer.commit") == "buffer_empty"


def test_an_edit_of_another_revision_is_a_conflict(session: Session) -> None:
    do(session, "input_text_buffer.append", text="a")
    assert code_of(session, "input_text_buffer.append", text="b", base_revision=0) == "revision_conflict"
    assert session.buffer.text == "a"


def test_session_update_answers_with_the_whole_configuration(session: Session) -> None:
    effects = do(session, "session.update", session={"type": "realtime", "instructions": "Be brief."})
    assert isinstance(effects[0], Configured)
    (update,) = [effect.event for effect in effects if isinstance(effect, Send)]
    assert update["session"]["instructions"] == "Be brief."
    assert update["session"]["id"] == "sess_1"
    assert update["session"]["output_modalities"] == ["text"]


def test_session_update_with_an_unknown_server_tool_changes_nothing(session: Session) -> None:
    tools = [{**CALCULATOR, "allowed_tools": ["rocket"]}]
    update = {"type": "realtime", "tools": tools, "instructions": "x"}
    assert code_of(session, "session.update", session=update) == "tool_not_found"
    assert session.config.instructions == ""


@pytest.mark.parametrize("approval", ["always", {"never": {"tool_names": ["calculator"]}}])
def test_tools_that_want_approval_are_refused_until_approval_exists(session: Session, approval: Any) -> None:
    update = {"type": "realtime", "tools": [{**CALCULATOR, "require_approval": approval}]}
    assert code_of(session, "session.update", session=update) == "invalid_value"
    assert session.config.tools == []


def test_items_can_be_created_retrieved_and_deleted(session: Session) -> None:
    item = {"id": "a", "type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]}
    assert sent(do(session, "conversation.item.create", item=item)) == [
        "conversation.item.added",
        "conversation.item.done",
    ]
    assert sent(do(session, "conversation.item.retrieve", item_id="a")) == ["conversation.item.retrieved"]
    effects = do(session, "conversation.item.delete", item_id="a")
    assert Deleted("a") in effects
    assert code_of(session, "conversation.item.delete", item_id="a") == "item_not_found"


def test_truncating_audio_is_unsupported(session: Session) -> None:
    fields = {"item_id": "a", "content_index": 0, "audio_end_ms": 0}
    assert code_of(session, "conversation.item.truncate", **fields) == "unsupported_modality"


def test_response_create_uses_its_overrides_for_this_response_only(session: Session) -> None:
    do(session, "session.update", session={"type": "realtime", "tools": [CALCULATOR]})
    (respond,) = do(session, "response.create", response={"tool_choice": FORCED, "max_output_tokens": 7})
    assert isinstance(respond, Respond)
    assert respond.config.max_output_tokens == 7
    assert session.config.max_output_tokens == "inf"


def test_a_second_response_create_is_refused_while_one_runs(session: Session) -> None:
    session.response_started("resp_1")
    assert code_of(session, "response.create") == "conversation_already_has_active_response"


def test_one_response_create_waits_behind_a_cancelling_response(session: Session) -> None:
    session.response_started("resp_1")
    assert do(session, "response.cancel") == [CancelResponse()]
    assert do(session, "response.create") == []
    assert code_of(session, "response.create") == "conversation_already_has_active_response"
    (queued,) = session.response_ended()
    assert isinstance(queued, Respond)
    assert session.response_ended() == []


def test_a_second_cancel_withdraws_the_waiting_response(session: Session) -> None:
    session.response_started("resp_1")
    do(session, "response.cancel")
    do(session, "response.create")
    assert do(session, "response.cancel") == []
    assert session.response_ended() == []


def test_a_late_cancel_cannot_stop_a_newer_response(session: Session) -> None:
    session.response_started("resp_2")
    assert code_of(session, "response.cancel", response_id="resp_1") == "response_not_active"
    assert session.activity == "running"


def test_cancel_with_nothing_running_is_an_error(session: Session) -> None:
    assert code_of(session, "response.cancel") == "response_not_active"


def test_out_of_band_responses_are_refused_clearly(session: Session) -> None:
    assert code_of(session, "response.create", response={"conversation": "none"}) == "invalid_value"


EVENTS = st.one_of(
    st.builds(lambda text: {"type": "input_text_buffer.append", "text": text}, st.text(max_size=8)),
    st.builds(
        lambda text, start, end, base: {
            "type": "input_text_buffer.replace",
            "text": text,
            "start": start,
            "end": end,
            "base_revision": base,
        },
        st.text(max_size=4),
        st.none() | st.integers(0, 12),
        st.none() | st.integers(0, 12),
        st.none() | st.integers(0, 12),
    ),
    st.sampled_from(
        [
            {"type": "input_text_buffer.clear"},
            {"type": "input_text_buffer.commit"},
            {"type": "response.create"},
            {"type": "response.cancel"},
            {"type": "session.update", "session": {"type": "realtime", "instructions": "x"}},
            {"type": "session.update", "session": {"type": "realtime", "tools": [CALCULATOR], "tool_choice": FORCED}},
            {"type": "ended"},
        ]
    ),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(EVENTS, max_size=25))
def test_any_order_of_events_keeps_one_response_at_most_and_every_commit(events: list[dict[str, Any]]) -> None:
    session = Session("sess_1", SessionConfig(model="tiny"), Conversation())
    commits = 0
    for number, event in enumerate(events):
        before = (session.buffer.text, session.buffer.revision, len(session.conversation), session.config)
        running = session.activity != "idle"
        try:
            if event["type"] == "ended":
                effects = session.response_ended() if running else []
            else:
                effects = session.handle(parse_client_event(json.dumps(event)))
        except ProtocolError:
            assert (session.buffer.text, session.buffer.revision, len(session.conversation), session.config) == before
            continue
        commits += sum(isinstance(effect, Committed) for effect in effects)
        starts = [effect for effect in effects if isinstance(effect, Respond)]
        assert len(starts) <= 1
        if starts:
            assert session.activity == "idle"
            session.response_started(f"resp_{number}")
        assert len(session.conversation) == commits
        assert (session.active_response == "") == (session.activity == "idle")
