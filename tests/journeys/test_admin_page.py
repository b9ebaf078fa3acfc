"""An operator at the dashboard while a client talks to the server."""

from __future__ import annotations

import re
from pathlib import Path

from playwright.async_api import Page, expect

from bench.server import Server
from tests.journeys.talk import Talk

CALCULATOR = {
    "tools": [
        {"type": "mcp", "server_label": "midstream", "allowed_tools": ["calculator"], "require_approval": "never"}
    ],
    "tool_choice": {"type": "mcp", "server_label": "midstream", "name": "calculator"},
}
DURATION = re.compile(r"^\d[\d.]* m?s$")


async def turn(server: Server, strategy: str, text: str) -> None:
    """One typed and answered message."""
    async with Talk(server.websocket_url) as talk:
        await talk.configure(midstream={"strategy": strategy, "events": ["prefill", "turn"]})
        await talk.send("input_text_buffer.append", text=text)
        while strategy != "off" and (await talk.until("midstream.prefill"))["prefilled_chars"] < len(text):
            pass
        await talk.say(text, max_output_tokens=32)
        await talk.until("midstream.turn")


async def tool_turn(server: Server) -> None:
    async with Talk(server.websocket_url) as talk:
        await talk.configure(midstream={"events": ["turn"]})
        await talk.say("What is 12 * 34?", **CALCULATOR)
        await talk.until("midstream.turn")


async def open_dashboard(page: Page) -> None:
    await page.goto("/admin")
    await expect(page.get_by_test_id("connection-status")).to_have_attribute("data-state", "open")


async def test_the_dashboard_shows_what_was_measured(server: Server, page: Page, artifacts: Path) -> None:
    for strategy in ("off", "prefill", "notes"):
        await turn(server, strategy, "What is the capital of Italy?")
    await tool_turn(server)
    await open_dashboard(page)

    for strategy in ("off", "prefill", "notes"):
        row = page.get_by_test_id("latency").locator("tbody tr").filter(has_text=strategy)
        for percent in ("p50", "p95", "p99"):
            for column in (0, 1):
                await expect(row.locator(f"td.{percent}").nth(column)).to_have_text(DURATION)
    tool_row = page.get_by_test_id("turn").filter(has=page.locator(".lane .tool"))
    await expect(tool_row.first.get_by_role("img")).to_have_attribute("aria-label", re.compile(r"Tool wait .*s"))
    typed = page.get_by_test_id("turn").filter(has=page.locator(".lane .typing"))
    for kind in ("prefill", "commit", "first-token", "answer"):
        await expect(typed.filter(has_text="prefill").first.locator(f".lane .{kind}").first).to_be_attached()

    blocks = page.get_by_test_id("kv-blocks")
    await expect(blocks.get_by_role("img")).to_have_attribute("aria-label", re.compile(r"Idle [1-9].*Free [1-9]"))
    await expect(page.get_by_test_id("nodes")).to_contain_text("ready")
    assert await page.evaluate("() => document.documentElement.scrollWidth <= window.innerWidth")
    await page.screenshot(path=artifacts / "admin.png", full_page=True)


async def test_a_turn_shows_up_while_the_dashboard_is_open(server: Server, page: Page) -> None:
    await open_dashboard(page)
    rows = page.get_by_test_id("turn")
    newest = page.get_by_test_id("turn").first.get_by_role("img")
    before = await newest.get_attribute("aria-label") if await rows.count() else None
    await turn(server, "prefill", "What is the capital of Spain?")
    if before is None:
        await expect(rows).to_have_count(1)
    else:
        await expect(newest).not_to_have_attribute("aria-label", before)
    await expect(page.get_by_test_id("turns")).not_to_contain_text("Spain")


async def test_the_dashboard_fits_a_phone(page: Page, artifacts: Path) -> None:
    await page.set_viewport_size({"width": 360, "height": 740})
    await page.emulate_media(color_scheme="dark")
    await open_dashboard(page)
    await expect(page.get_by_test_id("tiles")).to_contain_text("Engines ready")
    assert await page.evaluate("() => document.documentElement.scrollWidth <= window.innerWidth")
    await page.screenshot(path=artifacts / "admin_360_dark.png", full_page=True)
