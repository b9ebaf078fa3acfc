"""Names of the Redis keys; what they hold is in docs/architecture.md."""

from __future__ import annotations

NODES = "ms:nodes"
TURNS = "ms:turns"


def node(node_id: str) -> str:
    return f"ms:node:{node_id}"


def node_inbox(node_id: str) -> str:
    return f"ms:node:{node_id}:inbox"


def node_active(node_id: str) -> str:
    """Set of the sessions that have a response running on this node."""
    return f"ms:node:{node_id}:active"


def node_metrics(node_id: str) -> str:
    return f"ms:node:{node_id}:metrics"


def web(web_id: str) -> str:
    """Exists while the web process lives."""
    return f"ms:web:{web_id}"


def web_outbox(web_id: str) -> str:
    return f"ms:web:{web_id}:out"


def session(session_id: str) -> str:
    return f"ms:session:{session_id}"


def session_items(session_id: str) -> str:
    return f"ms:session:{session_id}:items"


def session_order(session_id: str) -> str:
    return f"ms:session:{session_id}:order"


def session_log(session_id: str) -> str:
    return f"ms:session:{session_id}:log"


def response(response_id: str) -> str:
    """A stored response of /v1/responses."""
    return f"ms:response:{response_id}"


def kv(session_id: str) -> str:
    return f"ms:kv:{session_id}"


def tool(call_id: str) -> str:
    return f"ms:tool:{call_id}"


def worker(name: str) -> str:
    return f"ms:worker:{name}"
