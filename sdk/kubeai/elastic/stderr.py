"""What the library says to people: single lines on stderr, each at most once in a process."""

from __future__ import annotations

import contextlib
import os

_STDERR = 2


class StderrLog:
    """Writes to the descriptor itself.

    sys.stderr has a lock, and a logging handler has another: a thread of ours that held one while the training process
    forks or ends would hang it.
    """

    def __init__(self) -> None:
        self._said: dict[str, object] = {}

    def once(self, topic: str, text: str) -> None:
        """Say one line, the first time that anything is said on this topic."""
        mine = object()
        if self._said.setdefault(topic, mine) is mine:  # setdefault, since several threads may speak at once
            line = f"kubeai.elastic: {text}\n".encode(errors="replace")
            with contextlib.suppress(OSError):
                os.write(_STDERR, line)
