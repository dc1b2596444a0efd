"""Watches the operator's host list, so that the supervisor knows it whether or not a command is running."""

from __future__ import annotations

import threading
from typing import Callable

from kubeai.elastic import threads
from kubeai.elastic.threads import StderrLog

from . import hosts
from .events import Event, HostsChanged, LogMessage

_FILE_SECONDS = 0.5
_SCRIPT_SECONDS = 1.0


class HostsWatch:
    """Reads the list periodically. An unreadable list changes nothing and is logged once.

    Args:
        source: The operator's list.
        on_event: Called with every event, from the watch's thread.
    """

    def __init__(self, source: hosts.Source, on_event: Callable[[Event], None]) -> None:
        self._source = source
        self._on_event = on_event
        self._last: tuple[str, ...] | None = None
        self._fails = False
        self._stopped = threading.Event()
        self._interval = _SCRIPT_SECONDS if source.script else _FILE_SECONDS
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread = threads.start("hosts", self._watch, StderrLog(), closed=self._stopped)

    def stop(self, timeout: float) -> None:
        """Stop the thread. Waits at most `timeout` seconds for a running script."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(timeout)

    def poll(self) -> None:
        """Read the list once and emit an event if it has changed."""
        try:
            names = tuple(self._source.read())
        except hosts.Unreadable as fault:
            if not self._fails:
                instead = "no hosts are known yet" if self._last is None else "using the last good list"
                self._on_event(LogMessage(f"{fault}: {instead}"))
            self._fails = True
            return
        if self._fails:
            self._on_event(LogMessage("the operator's list is readable again"))
        self._fails = False
        if names != self._last:
            self._last = names
            self._on_event(HostsChanged(names))

    def _watch(self) -> None:
        while not self._stopped.wait(self._interval):
            self.poll()
