"""What a process does so that it never outlives the process that started it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1

# Looked up at import: nothing may be loaded between fork and exec.
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


def die_with_parent(parent: int) -> None:
    """Asks the kernel for SIGKILL when the parent dies. `parent` is its pid, in case it is dead already.

    Only on Linux; elsewhere an orderly stop of the parent is needed.
    """
    if _libc is None:
        return
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
