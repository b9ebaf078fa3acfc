"""Which calls of one tool are alike, without a word of what they are about."""

from __future__ import annotations

import json

from realtime.tools import ServerTool


def argument_class(tool: ServerTool, arguments: str) -> str:
    """The tool's own parameters that a call gives, and the order of magnitude (powers of 4) of its length in bytes,
    e.g. "seconds/2". `arguments` is JSON; keys that the schema does not have may be a user's words and are left out."""
    try:
        decoded = json.loads(arguments)
    except (ValueError, RecursionError):
        decoded = None
    given = decoded.keys() if isinstance(decoded, dict) else set()
    names = [name for name in tool.parameters.get("properties", {}) if name in given]
    return f"{','.join(names)}/{(len(arguments.encode()).bit_length() + 1) // 2}"
