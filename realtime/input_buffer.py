"""The input buffer: the user's unsent text, and the number of the edit it is at."""

from __future__ import annotations

from typing import Any, Literal

from realtime.errors import ProtocolError

MAX_BYTES = 128 * 1024


class RevisionConflict(ProtocolError):
    """The client edited a revision that the buffer is not at; `revision` is the one it is at."""

    def __init__(self, revision: int) -> None:
        super().__init__("revision_conflict", f"the input buffer is at revision {revision}", "base_revision")
        self.revision = revision

    def to_event(self) -> dict[str, Any]:
        event = super().to_event()
        event["error"]["revision"] = self.revision
        return event


class InputBuffer:
    """Every accepted edit, and a commit, raises `revision` by one; a refused one changes nothing.

    Each method takes the `base_revision` that the client believes to edit (None = whatever it is) and raises
    `RevisionConflict` when it is another. `offsets` is the unit of `start`, `end` and `length`.
    """

    def __init__(self, offsets: Literal["utf16", "code_points"] = "utf16") -> None:
        self.text = ""
        self.revision = 0
        self.offsets = offsets
        self._bytes = 0

    @property
    def length(self) -> int:
        """Length of the text in the offset unit."""
        return len(self.text) if self._is_ascii else self.units(self.text)

    def units(self, text: str) -> int:
        """Length of any text in the offset unit."""
        return len(text) if self.offsets == "code_points" else len(text.encode("utf-16-le", "surrogatepass")) // 2

    def append(self, text: str, base_revision: int | None = None) -> None:
        """Raises `ProtocolError` buffer_too_large."""
        self._check_revision(base_revision)
        self._set(self.text + text, self._bytes + _utf8_length(text))

    def replace(
        self, text: str, start: int | None = None, end: int | None = None, base_revision: int | None = None
    ) -> None:
        """Replaces `start`..`end` (default: from the first to the last character).

        Raises `ProtocolError`: buffer_too_large, or invalid_value for an offset that is out of range or inside a
        surrogate pair.
        """
        self._check_revision(base_revision)
        first = 0 if start is None else self._index(start, "start")
        last = len(self.text) if end is None else self._index(end, "end")
        if first > last:
            raise ProtocolError("invalid_value", "start is after end", "start")
        new = self.text[:first] + text + self.text[last:]
        self._set(new, _utf8_length(new))

    def clear(self, base_revision: int | None = None) -> None:
        self._check_revision(base_revision)
        self._set("", 0)

    def commit(self, text: str | None = None, base_revision: int | None = None) -> str:
        """Empties the buffer and returns what it held, or `text`, which wins when given.

        Raises `ProtocolError`: buffer_empty when there is nothing but white space, or buffer_too_large.
        """
        self._check_revision(base_revision)
        committed = self.text if text is None else text
        if _utf8_length(committed) > MAX_BYTES:
            raise _too_large()
        if not committed.strip():
            raise ProtocolError("buffer_empty", "the input buffer is empty")
        self._set("", 0)
        return committed

    @property
    def _is_ascii(self) -> bool:
        return self._bytes == len(self.text)

    def _check_revision(self, base_revision: int | None) -> None:
        if base_revision is not None and base_revision != self.revision:
            raise RevisionConflict(self.revision)

    def _set(self, text: str, size: int) -> None:
        if size > MAX_BYTES:
            raise _too_large()
        self.text = text
        self._bytes = size
        self.revision += 1

    def _index(self, offset: int, param: str) -> int:
        """An offset in the session's unit as an index into `text`."""
        if not 0 <= offset <= self.length:
            raise ProtocolError("invalid_value", f"{param} is outside the text (0..{self.length})", param)
        if self.offsets == "code_points" or self._is_ascii:
            return offset
        try:
            return len(self.text.encode("utf-16-le")[: 2 * offset].decode("utf-16-le"))
        except UnicodeDecodeError:
            raise ProtocolError("invalid_value", f"{param} is inside a surrogate pair", param) from None


def _too_large() -> ProtocolError:
    return ProtocolError("buffer_too_large", f"the input buffer takes at most {MAX_BYTES} bytes of UTF-8", "text")


def _utf8_length(text: str) -> int:
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        raise ProtocolError("invalid_value", "text has half a surrogate pair", "text") from None
