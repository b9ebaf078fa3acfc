"""`midstream chat`: a conversation in the terminal. Every edit of the line is on the server before Enter is."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from typing import Any
from urllib.parse import urlsplit

from prompt_toolkit import PromptSession
from prompt_toolkit.patch_stdout import patch_stdout
from rich.console import Console
from rich.text import Text
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from realtime.tools import SERVER_LABEL

COALESCE_S = 0.03
SILENCE_S = 120.0
OPEN_S = 10.0

console = Console(highlight=False, soft_wrap=True)


def chat(url: str, key: str, strategy: str, tools: list[str]) -> int:
    """Returns at the end of input. The exit code is 1 when the connection cannot be made or is lost."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        asyncio.run(_converse(realtime_url(url), headers, session_update(strategy, tools)))
    except (OSError, WebSocketException, ValueError) as error:
        console.print(Text(f"No connection with {url}: {error or 'no answer'}", "bold red"))
        return 1
    return 0


def realtime_url(url: str) -> str:
    """The WebSocket address behind a server's http(s) address. Raises `ValueError` for anything else."""
    parts = urlsplit(url)
    schemes = {"http": "ws", "https": "wss"}
    if parts.scheme not in schemes or not parts.netloc:
        raise ValueError(f"not an http address: {url}")
    return f"{schemes[parts.scheme]}://{parts.netloc}{parts.path.rstrip('/')}/v1/realtime"


def session_update(strategy: str, tools: list[str]) -> dict[str, Any]:
    session: dict[str, Any] = {"type": "realtime", "midstream": {"events": True}}
    if strategy:
        session["midstream"]["strategy"] = strategy
    if tools:
        session["tools"] = [
            {"type": "mcp", "server_label": SERVER_LABEL, "allowed_tools": tools, "require_approval": "never"}
        ]
    return {"type": "session.update", "session": session}


async def _converse(url: str, headers: dict[str, str], update: dict[str, Any]) -> None:
    async with connect(url, additional_headers=headers, open_timeout=OPEN_S, max_size=None) as connection:
        conversation = Conversation(connection)
        await conversation.send(update)
        talk = _terminal(conversation) if sys.stdin.isatty() else _lines(conversation)
        tasks = [asyncio.create_task(part) for part in (talk, conversation.receive(), conversation.stream_edits())]
        done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        for task in done:
            task.result()


async def _terminal(conversation: Conversation) -> None:
    prompt: PromptSession[str] = PromptSession("> ")
    prompt.default_buffer.on_text_changed += lambda buffer: conversation.edit(buffer.text)
    while True:
        try:
            with patch_stdout(raw=True):
                text = await prompt.prompt_async()
        except KeyboardInterrupt:
            continue
        except EOFError:
            return
        if text.strip():
            loop = asyncio.get_running_loop()
            loop.add_signal_handler(signal.SIGINT, conversation.interrupt)
            try:
                await conversation.turn(text)
            finally:
                loop.remove_signal_handler(signal.SIGINT)


async def _lines(conversation: Conversation) -> None:
    while line := await asyncio.to_thread(sys.stdin.readline):
        if line.strip():
            await conversation.turn(line.strip())


class Conversation:
    """The client's side of one session. `turn` is called by one task at a time."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._text = ""
        self._edited = asyncio.Event()
        self._turn_over = asyncio.Event()
        self._turn_over.set()
        self._patience: asyncio.Timeout | None = None
        self._interrupting: asyncio.Future[None] | None = None
        self._sent_at = 0.0
        self._first_token_at = 0.0

    async def send(self, event: dict[str, Any]) -> None:
        await self._connection.send(json.dumps(event))

    def edit(self, text: str) -> None:
        """What the input line holds now."""
        self._text = text
        self._edited.set()

    async def stream_edits(self) -> None:
        """Sends the newest text a moment after each edit, for ever."""
        while True:
            await self._edited.wait()
            await asyncio.sleep(COALESCE_S)
            # Cleared by a turn that began meanwhile: its commit has carried the text.
            if self._edited.is_set():
                self._edited.clear()
                await self.send({"type": "input_text_buffer.replace", "text": self._text})

    async def turn(self, text: str) -> None:
        """Sends the text; returns when the answer is complete. Raises `TimeoutError` after `SILENCE_S` of silence."""
        self._edited.clear()
        self._turn_over.clear()
        self._first_token_at = 0.0
        self._sent_at = time.monotonic()
        await self.send({"type": "input_text_buffer.commit", "text": text, "event_id": "commit"})
        await self.send({"type": "response.create", "event_id": "create"})
        async with asyncio.timeout(SILENCE_S) as self._patience:
            await self._turn_over.wait()

    def interrupt(self) -> None:
        """Stops the answer that is being written; its turn ends as usual."""
        self._interrupting = asyncio.ensure_future(self.send({"type": "response.cancel"}))

    async def receive(self) -> None:
        """Shows what comes. Raises `ConnectionError` when the server says goodbye."""
        async for message in self._connection:
            if self._patience is not None and not self._turn_over.is_set():
                self._patience.reschedule(asyncio.get_running_loop().time() + SILENCE_S)
            self._show(json.loads(message))
        raise ConnectionError(f"the server closed it ({self._connection.close_code})")

    def _show(self, event: dict[str, Any]) -> None:
        match event:
            case {"type": "response.output_text.delta", "delta": delta}:
                self._first_token_at = self._first_token_at or time.monotonic()
                console.print(Text(delta), end="")
            case {"type": "response.mcp_call_arguments.done", "arguments": arguments}:
                console.print(Text(f"[tool] {arguments}", "yellow"))
            case {"type": "midstream.tool.progress", "message": str(progress)}:
                console.print(Text(f"[tool] {progress}", "dim"))
            case {"type": "response.output_item.done", "item": {"type": "mcp_call"} as item}:
                self._show_tool_result(item)
            case {"type": "midstream.inference.done", "text": note}:
                console.print(Text(f"[note] {note}", "dim"))
            case {"type": "response.done", "response": response}:
                self._show_end(response)
                self._turn_over.set()
            case {"type": "error", "error": error}:
                console.print(Text(f"[error] {error.get('message')}", "bold red"))
                if error.get("event_id") in ("commit", "create"):
                    self._turn_over.set()

    def _show_tool_result(self, item: dict[str, Any]) -> None:
        if item.get("error"):
            console.print(Text(f"[{item['name']}] failed: {item['error'].get('message')}", "red"))
        else:
            console.print(Text(f"[{item['name']}] {item.get('output')}", "yellow"))

    def _show_end(self, response: dict[str, Any]) -> None:
        notes = []
        if self._first_token_at:
            notes.append(f"first token {(self._first_token_at - self._sent_at) * 1000:.0f} ms after Enter")
        usage = response.get("usage") or {}
        # Zero when the answer was stopped.
        if prompt := usage.get("input_tokens"):
            cached = usage.get("input_token_details", {}).get("cached_tokens", 0)
            notes.append(f"{cached} of {prompt} tokens were ready")
        if response.get("status") != "completed":
            notes.append(str(response.get("status")))
        console.print(Text(f"\n({', '.join(notes)})", "dim"))
