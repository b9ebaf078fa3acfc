"""`midstream chat` in a real terminal, against the whole server."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from bench.server import Server

LIMIT_S = 90
CTRL_D, LEFT, BACKSPACE = b"\x04", b"\x1b[D", b"\x7f"
ESCAPE_SEQUENCE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """A command with a terminal of its own; `shown` is everything that it printed, without the colours."""

    def __init__(self, command: list[str]) -> None:
        self._master, child = pty.openpty()
        environment = os.environ | {"TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1", "COLUMNS": "120", "LINES": "40"}
        self.process = subprocess.Popen(command, stdin=child, stdout=child, stderr=child, env=environment)
        os.close(child)
        self._raw = b""

    @property
    def shown(self) -> str:
        return ESCAPE_SEQUENCE.sub("", self._raw.decode(errors="replace"))

    def press(self, keys: bytes) -> None:
        """One key after the other."""
        for key in re.findall(rb"\x1b\[D|.", keys, re.DOTALL):
            os.write(self._master, key)

    def await_text(self, pattern: str, after: int = 0) -> int:
        """Returns where in `shown` the match ends."""
        deadline = time.monotonic() + LIMIT_S
        while (match := re.compile(pattern).search(self.shown, after)) is None:
            assert time.monotonic() < deadline, self.shown
            readable, _, _ = select.select([self._master], [], [], 1)
            if readable:
                self._raw += os.read(self._master, 65536)
        return match.end()

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._master)


@pytest.fixture
def terminal(server: Server) -> Iterator[Terminal]:
    terminal = Terminal([sys.executable, "-m", "launch", "chat", "--url", server.url])
    yield terminal
    terminal.end()


def test_a_typed_and_edited_question_is_answered(terminal: Terminal) -> None:
    terminal.await_text(r">")
    terminal.press(b"What is the capitel of France?" + LEFT * len("l of France?") + BACKSPACE + b"a\r")
    end = terminal.await_text(r"Paris")
    end = terminal.await_text(r"\(first token \d+ ms after Enter, (\d+) of (\d+) tokens were ready", end)
    end = terminal.await_text(r">", end)
    terminal.press(b"And of Italy?\r")
    end = terminal.await_text(r"\(first token \d+ ms after Enter", end)
    terminal.await_text(r">", end)
    terminal.press(CTRL_D)
    assert terminal.process.wait(LIMIT_S) == 0
