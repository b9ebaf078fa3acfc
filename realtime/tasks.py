"""Ending tasks for sure."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

AGAIN_S = 0.2


async def cancel_and_wait(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancels until every task has ended. Once is not enough: before Python 3.12 `asyncio.wait_for`, which the Redis
    client uses for every command, loses a cancellation that comes just when what it waits for is done."""
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=AGAIN_S)
