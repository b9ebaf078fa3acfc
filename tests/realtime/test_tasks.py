from __future__ import annotations

import asyncio

from realtime.tasks import cancel_and_wait


async def test_a_task_that_loses_its_first_cancellation_is_ended_all_the_same() -> None:
    lost = 0

    async def stubborn() -> None:
        nonlocal lost
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                lost += 1
                if lost > 1:
                    raise

    task = asyncio.create_task(stubborn())
    await asyncio.sleep(0)
    await cancel_and_wait([task])
    assert task.cancelled()
    assert lost == 2


async def test_tasks_that_have_ended_are_fine() -> None:
    task = asyncio.create_task(asyncio.sleep(0))
    await task
    await cancel_and_wait([task])
    await cancel_and_wait([])
