"""Cuts a child's output into lines; a progress bar that redraws itself with carriage returns becomes lines too."""

from __future__ import annotations

import re

MAX_LINE_BYTES = 8192

_END = re.compile(rb"\r\n|\n|\r(?=[^\n])")


class Lines:
    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[tuple[str, bool]]:
        """Complete lines, each with whether it is a redraw. Longer lines than `MAX_LINE_BYTES` come in pieces."""
        buffer = self._rest + data
        lines: list[tuple[str, bool]] = []
        start = 0
        for end in _END.finditer(buffer):
            lines.append((_text(buffer[start : end.start()]), end[0] == b"\r"))
            start = end.end()
        while len(buffer) - start > MAX_LINE_BYTES:
            lines.append((_text(buffer[start : start + MAX_LINE_BYTES]), False))
            start += MAX_LINE_BYTES
        self._rest = buffer[start:]
        return [line for line in lines if line[0]]

    def end(self) -> list[tuple[str, bool]]:
        """What came after the last line end."""
        return self.feed(b"\n")


def _text(line: bytes) -> str:
    return line.decode(errors="replace").rstrip()
