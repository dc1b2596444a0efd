"""The session of one process with the supervisor: its threads, fork handling and exit.

Four daemon threads keep four kinds of waiting apart: for the moment a directive takes effect, for the next line
(including connecting), for the delivery of an answer to an agreement, and for anything that may take time (reports,
user callbacks). None of them holds a lock of the logging module or of sys.stderr, which a fork would copy.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import math
import operator
import os
import sys
import threading
from typing import TYPE_CHECKING

from . import elastic_agent, exit_hook, flag, gates, identity, sockets, threads
from .agreed_step import AgreedStep
from .agreement import Purpose
from .annotations import AnnotationWatch
from .arbiter import Arbiter
from .listener import Listener
from .messages import described
from .monitor import Monitor
from .ranks import Ranks
from .replies import Replies
from .reporter import NoticeCallbacks, Reporter
from .sigterm import Sigterm
from .stderr import StderrLog
from .uplink import Uplink, host_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from .state import State
    from .values import Notice


class Session:
    """Does nothing until it is started. Forked children can only read it."""

    def __init__(self) -> None:
        self._stderr = StderrLog()
        self._monitor = Monitor()
        self._stderr.sender = self._sender
        self._ranks = Ranks(sys.modules, os.environ, self._stderr)
        self._callbacks = NoticeCallbacks(self._stderr)
        self._sigterm = Sigterm(self._monitor.terminate, self._stderr)
        self._starting = threading.Lock()
        self._is_started = False
        self._is_child = False
        agreed = AgreedStep(self._monitor, Arbiter(sys.modules))
        gates.connect(agreed.arrive, lambda: self.state.wants_checkpoint)

    @property
    def state(self) -> State:
        """The received state; in a forked child, the state at the fork."""
        return self._monitor.state

    def start(
        self,
        rank: Callable[[], int | None] | None,
        world_size: Callable[[], int | None] | None,
        *,
        sigterm: bool,
        collective: bool,
    ) -> None:
        """Start listening on the first call. The arguments are applied on each call."""
        if self._is_child:
            return
        if rank is not None:
            self._ranks.rank.callable = rank
        if world_size is not None:
            self._ranks.world_size.callable = world_size
        if collective:
            self._monitor.set_collective()
        if not self._is_started:
            self._start_once()
        if sigterm:
            self._sigterm.watch()

    def checkpoint_saved(self, step: int | None, seconds: float | None) -> None:
        """Record a checkpoint, to be reported."""
        if self._is_child or self._monitor.checkpoint_saved(_whole(step), _duration(seconds)):
            return
        self._stderr.once(
            "another step",
            f"the checkpoint of step {step} is not the one that is asked for: the job waits for that of the step at "
            "which this process stops",
        )

    def checkpoint_failed(self, error: object, step: int | None) -> None:
        """Record that a checkpoint could not be saved, to be reported."""
        if not self._is_child:
            self._monitor.checkpoint_failed(_whole(step), described(error))

    @property
    def may_save_again(self) -> bool:
        """Whether a save that has failed may be repeated in this process alone."""
        member = self._monitor.member
        return not member.collective and member.rank in (0, None)

    def resumed(self, step: int) -> None:
        """Record the step that this run starts from, to be reported."""
        if not self._is_child:
            self._monitor.resumed(operator.index(step))

    def hold_for_regroup(self) -> None:
        """Answer that this process waits for the next round."""
        if not self._is_child:
            self._monitor.hold(Purpose.REGROUP)

    def on_notice(self, callback: Callable[[Notice], object]) -> None:
        """Add a notice callback."""
        self._callbacks.add(callback)

    def _sender(self) -> str:
        rank = self._monitor.member.rank
        return f"rank {'unknown' if rank is None else rank}, {host_name()}, pid {os.getpid()}"

    def _start_once(self) -> None:
        with self._starting:
            if not self._is_started:
                self._is_started = True
                self._start()

    def _start(self) -> None:
        try:
            flag.create_shared()
            home = identity.directory()
            uplink, annotations = Uplink(home, self._stderr), AnnotationWatch(home, self._monitor)
            listener = Listener(self._monitor, uplink, self._stderr)
            reporter = Reporter(self._monitor, uplink, self._ranks, self._callbacks, self._stderr)
            replies = Replies(self._monitor, uplink, self._stderr)
            os.register_at_fork(after_in_child=self._abandon)
            run_timer = functools.partial(self._monitor.run_timer, annotations.poll)
            tasks: dict[str, Callable[[], object]] = {
                "time": run_timer,
                "report": reporter.run,
                "answer": replies.run,
                "listen": listener.run,
            }
            for name, task in tasks.items():
                threads.start(f"kubeai-{name}", task, self._stderr)
            atexit.register(self._end, uplink, listener)
            if elastic_agent.has_round():
                from . import blocked  # noqa: PLC0415 - other processes need no ctypes

                elastic_agent.watch_failures()
                blocked.watch(self._stderr)
        except Exception as error:  # noqa: BLE001 - without memory or threads training still continues
            self._stderr.once("absent", f"cannot listen for reclaims: {error!r}. Training continues without warnings")

    def _abandon(self) -> None:
        self._is_child = True
        gates.abandon_in_child()
        with contextlib.suppress(OSError):
            sockets.abandon_in_child()

    def _end(self, uplink: Uplink, listener: Listener) -> None:
        if self._is_child:
            return
        self._sigterm.restore()  # with the previous handler, a SIGTERM ends the wait below at once
        with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C skips the wait
            exit_hook.report_exit(self._monitor, uplink, self._stderr, exit_hook.hold_seconds(os.environ))
        listener.close()
        uplink.close()


def _whole(step: int | None) -> int | None:
    """Convert a step to int, also from numpy; None if it is no integer."""
    try:
        return None if step is None else operator.index(step)
    except TypeError:
        return None


def _duration(seconds: float | None) -> float | None:
    """Return a finite number of seconds, at least 0; None if it is none."""
    try:
        number = None if seconds is None else float(seconds)
    except (TypeError, ValueError):
        return None
    return number if number is not None and math.isfinite(number) and number >= 0 else None
