"""Whole systems and real browsers. A journey may take minutes on a busy machine; whatever it waits for has a limit."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Page, async_playwright, expect

from bench.server import Server, running_server
from tests.journeys.browser import Problems, launch

LOG_LINES = 40
LIMIT_MS = 90_000
ROOT = Path(__file__).resolve().parents[2]

expect.set_options(timeout=LIMIT_MS)


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """One server for every journey that does not break it. Exact arithmetic makes its answers repeatable, and short
    ones keep the journeys quick."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        with running_server(dtype="float32", max_output_tokens="96") as running:
            yield running


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        chromium = await launch(playwright)
        yield chromium
        await chromium.close()


@pytest.fixture
async def page(server: Server, browser: Browser) -> AsyncIterator[Page]:
    """An empty tab of a fresh profile. The test fails for anything that the browser complained about."""
    context = await browser.new_context(base_url=server.url, viewport={"width": 1280, "height": 800})
    context.set_default_timeout(LIMIT_MS)
    problems = Problems(context)
    yield await context.new_page()
    await context.close()
    assert problems.messages == []


@pytest.fixture
def artifacts() -> Path:
    """Where screenshots go. The README's is a copy of `artifacts/chat.png` in `docs/images`."""
    folder = ROOT / "artifacts"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Shows the end of the server's log under a failed journey."""
    report = yield
    arguments: dict[str, Any] = getattr(item, "funcargs", {})
    servers = [argument for argument in arguments.values() if isinstance(argument, Server)]
    if report.failed:
        report.sections += [("server log", "\n".join(server.log[-LOG_LINES:])) for server in servers]
    return report
