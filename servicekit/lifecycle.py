"""Runs a service: its event loop, root tasks and signals. Defines its answer to a probe."""

import asyncio
import signal
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from servicekit.bulkhead import ProcessFault


@dataclass(frozen=True, slots=True)
class Health:
    """The answer to a probe. The detail is for people; it must encode as JSON and must not name a job."""

    ok: bool
    detail: Mapping[str, Any] = field(default_factory=dict)


class RootTaskEnded(ProcessFault):
    """A root task returned or raised while the service was meant to run, so the process should end.

    Attributes:
        name: The name of the task. If it raised, its exception is the cause.
    """

    def __init__(self, name: str) -> None:
        super().__init__(f"root task {name!r} ended while the service was running")
        self.name = name


async def run_tasks(tasks: Mapping[str, Callable[[], Coroutine[Any, Any, None]]], stop: asyncio.Event) -> None:
    """Runs named tasks until `stop` is set, then cancels them and waits for each to end.

    A task does its cleanup, such as a goodbye on its stream, in its own `finally`.

    Raises:
        RootTaskEnded: A task returned or raised before `stop` was set, or raised while it was being stopped. The
            others have been cancelled and have ended.
    """
    running = [asyncio.create_task(start(), name=name) for name, start in tasks.items()]
    stopped = asyncio.create_task(stop.wait(), name="stop")
    try:
        await asyncio.wait([stopped, *running], return_when=asyncio.FIRST_COMPLETED)
        # Checked before anything is cancelled: after that every task ends.
        ended_early = [] if stop.is_set() else [task for task in running if task.done()]
    finally:
        for task in (stopped, *running):
            task.cancel()
        # This also marks every exception as retrieved; the first one is raised below.
        await asyncio.gather(stopped, *running, return_exceptions=True)
    for task in ended_early or running:
        cause = None if task.cancelled() else task.exception()
        if cause is not None or ended_early:
            raise RootTaskEnded(task.get_name()) from cause


def _stop_signals() -> tuple[signal.Signals, ...]:
    """Returns SIGTERM, and SIGINT unless it was ignored when the process started.

    A shell ignores SIGINT for the background jobs of a script: a Ctrl-C in the terminal reaches them too, but is not
    meant for them.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        return (signal.SIGTERM,)
    return signal.SIGTERM, signal.SIGINT


@contextmanager
def stop_on_signals(stop: asyncio.Event) -> Iterator[None]:
    """Sets `stop` on SIGTERM and SIGINT while the context lasts; an ignored SIGINT stays ignored.

    Needs a running loop in the main thread.
    """
    loop, numbers = asyncio.get_running_loop(), _stop_signals()
    for number in numbers:
        loop.add_signal_handler(number, stop.set)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


@contextmanager
def cancel_on_signals() -> Iterator[None]:
    """Cancels the present task on SIGTERM and SIGINT and ends the context without an error: for long waits.

    Without a handler, the first process of a container would ignore these signals. `stop_on_signals` takes over when it
    is used inside this context. An ignored SIGINT stays ignored. Needs a running loop in the main thread.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    signalled, numbers = asyncio.Event(), _stop_signals()

    def cancel() -> None:
        signalled.set()
        if task is not None:
            task.cancel()

    for number in numbers:
        loop.add_signal_handler(number, cancel)
    try:
        yield
    except asyncio.CancelledError:
        if task is None or not signalled.is_set():
            raise
        task.uncancel()
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


def run(
    main: Callable[[], Coroutine[Any, Any, int]],
    loop_factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop,
) -> int:
    """Runs a service's main coroutine on a loop of that factory and returns its exit code."""
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        return runner.run(main())
