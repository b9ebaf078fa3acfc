"""The folder that holds everything one server keeps, and the lock that gives it one server at a time."""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
import time
from pathlib import Path

# The kernel's limit on the path of a Unix socket is 108 bytes, on macOS 104.
MAX_SOCKET_PATH = 100
LOCK_PATIENCE_S = 3.0


class DataFolderInUse(Exception):
    """Another server uses the folder."""


class DataFolder:
    """Creates the folder, readable by its owner only: it holds conversations.

    `lock_fd` is given to the embedded Redis too, so that the folder stays locked as long as either of them lives.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.expanduser().resolve()
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.run = self.path / "run"
        self.run.mkdir(mode=0o700, exist_ok=True)
        self.lock_fd = -1

    def lock(self) -> None:
        """Waits a moment for a server that is just ending. Raises `DataFolderInUse`."""
        self.lock_fd = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        deadline = time.monotonic() + LOCK_PATIENCE_S
        while True:
            try:
                fcntl.flock(self.lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > deadline:
                    os.close(self.lock_fd)
                    self.lock_fd = -1
                    raise DataFolderInUse(
                        f"another Midstream server is using {self.path}; stop it, or choose a folder with --data"
                    ) from None
                time.sleep(0.05)

    def unlock(self) -> None:
        if self.lock_fd >= 0:
            os.close(self.lock_fd)
            self.lock_fd = -1

    def socket_path(self, name: str) -> Path:
        """Where the Unix socket `name` goes: under `run`, or in a private temporary folder when that path is too long.

        The same for every process that uses this data folder. Raises `PermissionError` if someone else owns the place.
        """
        path = self.run / name
        if len(os.fsencode(path)) <= MAX_SOCKET_PATH:
            return path
        digest = hashlib.sha256(os.fsencode(self.path)).hexdigest()[:16]
        folder = Path(tempfile.gettempdir()) / f"midstream-{os.getuid()}-{digest}"
        folder.mkdir(mode=0o700, exist_ok=True)
        if folder.stat().st_uid != os.getuid() or folder.is_symlink():
            raise PermissionError(f"{folder} belongs to another user")
        return folder / name
