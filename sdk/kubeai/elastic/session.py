"""One process's life with the supervisor: its threads, its forks and its end.

Three daemon threads, because three kinds of waiting must not hold each other up: for the moment a directive takes
effect, for the next line (which includes connecting), and for whatever may take its time (reports, the user's
functions). None holds a lock of the logging module or of sys.stderr, which a fork would copy.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import operator
import os
import sys
import threading
import time
from typing import TYPE_CHECKING

from . import exit_hook, flag, identity, wire
from .annotations import AnnotationWatch
from .listener import Listener
from .monitor import Monitor
from .ranks import RankWatch
from .reporter import NoticeCallbacks, Reporter
from .sigterm import Sigterm
from .stderr import StderrLog
from .uplink import Uplink

if TYPE_CHECKING:
    from collections.abc import Callable

    from .state import State
    from .values import Notice

_AFTER_BUG_SECONDS = 5.0


class Session:
    """Does nothing until it is started, in the process that it is started in; forked children only read it."""

    def __init__(self) -> None:
        self._stderr = StderrLog()
        self._monitor = Monitor()
        self._ranks = RankWatch(sys.modules, os.environ, self._stderr)
        self._callbacks = NoticeCallbacks(self._stderr)
        self._sigterm = Sigterm(self._monitor.terminate, self._stderr)
        self._starting = threading.Lock()
        self._is_started = False
        self._is_child = False

    @property
    def state(self) -> State:
        """What was heard so far; in a forked child, what was heard before the fork."""
        return self._monitor.state

    def start(self, rank: Callable[[], int | None] | None, *, sigterm: bool) -> None:
        """Begin to listen, the first time; a rank function and the wish to watch SIGTERM are taken over each time."""
        if self._is_child:
            return
        if rank is not None:
            self._ranks.callable = rank
        if not self._is_started:
            self._start_once()
        if sigterm:
            self._sigterm.watch()

    def checkpoint_saved(self, step: int | None) -> None:
        """Note a checkpoint, to be reported."""
        if not self._is_child:
            self._monitor.checkpoint_saved(_whole(step))

    def on_notice(self, callback: Callable[[Notice], object]) -> None:
        """Call this about notices."""
        self._callbacks.add(callback)

    def _start_once(self) -> None:
        with self._starting:
            if not self._is_started:
                self._is_started = True
                self._start()

    def _start(self) -> None:
        try:
            flag.create_shared()
            home = identity.directory()
            uplink, annotations = Uplink(home), AnnotationWatch(home, self._monitor)
            listener = Listener(self._monitor, uplink, self._stderr)
            reporter = Reporter(self._monitor, uplink, self._ranks, self._callbacks, self._stderr)
            os.register_at_fork(after_in_child=self._abandon)
            run_timer = functools.partial(self._monitor.run_timer, annotations.poll)
            for name, task in (("time", run_timer), ("report", reporter.run), ("listen", listener.run)):
                threading.Thread(target=self._guarded, args=(task,), name=f"kubeai-{name}", daemon=True).start()
            atexit.register(self._end, uplink, listener)
        except Exception as error:  # noqa: BLE001 - no memory, no threads: whatever it is, training goes on
            self._stderr.once("absent", f"cannot listen for reclaims: {error!r}. Training goes on, unwarned")

    def _guarded(self, task: Callable[[], None]) -> None:
        while True:
            try:
                return task()
            except Exception as error:  # noqa: BLE001 - a mistake of ours costs a warning at most, never the training
                self._stderr.once("internal", f"an internal error, please report it: {error!r}")
            time.sleep(_AFTER_BUG_SECONDS)

    def _abandon(self) -> None:
        self._is_child = True
        with contextlib.suppress(OSError):
            wire.abandon_in_child()

    def _end(self, uplink: Uplink, listener: Listener) -> None:
        if self._is_child:
            return
        self._sigterm.restore()  # a SIGTERM ends the wait below at once, as it always did
        with contextlib.suppress(KeyboardInterrupt):  # asked to go at once
            exit_hook.report_exit(self._monitor, uplink, self._stderr, exit_hook.hold_seconds(os.environ))
        listener.close()


def _whole(step: int | None) -> int | None:
    """The step as an int, also where it is numpy's; None where it is none."""
    try:
        return None if step is None else operator.index(step)
    except TypeError:
        return None
