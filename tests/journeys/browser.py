"""The system's Chromium, driven by Playwright."""

from __future__ import annotations

import shutil

from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Playwright, WebError

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


async def launch(playwright: Playwright) -> Browser:
    """Raises `RuntimeError` without a chromium on PATH."""
    path = shutil.which("chromium")
    if path is None:
        raise RuntimeError("the browser tests need chromium on PATH")
    return await playwright.chromium.launch(executable_path=path, args=ARGUMENTS)


class Problems:
    """What the pages of a context complained about: console errors and warnings (violations of the content security
    policy are among them) and exceptions that no script caught."""

    def __init__(self, context: BrowserContext) -> None:
        self.messages: list[str] = []
        context.on("console", self._on_console)
        context.on("weberror", self._on_error)

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.messages.append(f"{message.type}: {message.text}")

    def _on_error(self, error: WebError) -> None:
        self.messages.append(f"uncaught: {error.error}")
