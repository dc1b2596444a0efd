"""Processes that an elastic agent of torchrun has started in a round of the backend `kubeai`.

Such a process waits for its agent at its end, which its launcher would otherwise take for a failure.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType

_ROUND = "KUBEAI_RENDEZVOUS_ROUND"
HOLD_SECONDS = 60.0
"""How long a process waits for its elastic agent after an agreed step, at least."""
FAILURE_SECONDS = 10.0
"""How long it waits after a collective has failed: a lost member is known after 3 s."""

# torch.distributed raises a RuntimeError for gloo.
_COLLECTIVE_ERRORS = ("DistBackendError", "DistNetworkError", "DistStoreError")
_COLLECTIVE_WORDS = ("gloo", "nccl")

_failed_in_collective = False


def has_round() -> bool:
    """Return whether this process was started in a round."""
    return bool(os.environ.get(_ROUND))


def watch_failures() -> None:
    """Note an uncaught error of a collective from now on. A process without a round is left as it is."""
    if not has_round():
        return
    before = sys.excepthook

    def noted(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        global _failed_in_collective  # noqa: PLW0603 - the exit hook has nothing else of this process to look at
        _failed_in_collective = is_of_collective(error)
        before(kind, error, traceback)

    sys.excepthook = noted


def failed_in_collective() -> bool:
    """Return whether this process exits because a collective has failed."""
    return _failed_in_collective


def is_of_collective(error: BaseException) -> bool:
    """Return whether an exception says that a collective has failed, such as after the loss of another process."""
    if type(error).__name__ in _COLLECTIVE_ERRORS:
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(word in text for word in _COLLECTIVE_WORDS)


def obey_sigterm() -> None:
    """Let SIGTERM end the process at once, whatever the script has installed: it has saved and only waits."""
    if threading.current_thread() is threading.main_thread():
        with contextlib.suppress(ValueError, OSError):
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
