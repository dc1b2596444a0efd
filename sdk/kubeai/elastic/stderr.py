"""Messages of the library: single lines on stderr, each at most once per process."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_STDERR = 2


class StderrLog:
    """Writes to the file descriptor directly.

    sys.stderr has a lock, and a logging handler has another. A thread of the library that held one while the training
    process forks or exits would hang it.
    """

    def __init__(self) -> None:
        self.sender: Callable[[], str] = str
        """Names this process at the end of each line: the ranks of a job often share one log."""
        self._first: dict[str, object] = {}

    def once(self, topic: str, text: str) -> None:
        """Write a line unless one was written for this topic before."""
        mine = object()
        if self._first.setdefault(topic, mine) is mine:  # setdefault is atomic: several threads may write at once
            sender = self.sender()
            line = f"kubeai.elastic: {text}{f' ({sender})' if sender else ''}\n".encode(errors="replace")
            with contextlib.suppress(OSError):
                os.write(_STDERR, line)

    def fault(self, where: str, error: BaseException) -> None:
        """Write an exception that nobody foresaw, with its traceback, once for each type and place."""
        import traceback  # noqa: PLC0415 - it is seldom needed, and imports the tokenizer

        lines = "".join(traceback.format_exception(type(error), error, error.__traceback__)).rstrip()
        self.once(f"fault {where} {type(error).__name__}", f"an internal error in {where}, please report it:\n{lines}")
