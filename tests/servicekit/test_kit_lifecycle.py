"""Root tasks, signals and the clock."""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest
import uvloop

from servicekit.clock import Clock
from servicekit.lifecycle import RootTaskEnded, cancel_on_signals, run, run_tasks, stop_on_signals


class Probe:
    """A root task that says whether it was started and whether it has ended."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.ended = False

    async def run(self) -> None:
        self.started.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            self.ended = True


async def test_tasks_run_until_stop_and_have_ended_when_it_returns() -> None:
    stop, first, second = asyncio.Event(), Probe(), Probe()
    running = asyncio.create_task(run_tasks({"first": first.run, "second": second.run}, stop))
    await first.started.wait()
    await second.started.wait()
    assert not running.done()
    stop.set()
    await running
    assert first.ended
    assert second.ended


async def test_a_root_task_that_returns_is_a_failure() -> None:
    """A long-running task that returns ends the service, and the others with it."""

    async def returns() -> None:
        await other.started.wait()

    other = Probe()
    with pytest.raises(RootTaskEnded) as raised:
        await run_tasks({"other": other.run, "returns": returns}, asyncio.Event())
    assert raised.value.name == "returns"
    assert raised.value.__cause__ is None
    assert other.ended


async def test_a_root_task_that_raises_is_the_cause() -> None:
    async def raises() -> None:
        raise LookupError("lost")

    with pytest.raises(RootTaskEnded) as raised:
        await run_tasks({"raises": raises}, asyncio.Event())
    assert isinstance(raised.value.__cause__, LookupError)


async def test_a_failure_while_stopping_is_not_swallowed() -> None:
    async def raises_at_the_end() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise LookupError("lost")

    stop = asyncio.Event()
    asyncio.get_running_loop().call_soon(stop.set)
    with pytest.raises(RootTaskEnded, match="raises_at_the_end"):
        await run_tasks({"raises_at_the_end": raises_at_the_end}, stop)


async def test_cancelling_run_tasks_ends_its_tasks() -> None:
    probe = Probe()
    running = asyncio.create_task(run_tasks({"probe": probe.run}, asyncio.Event()))
    await probe.started.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert probe.ended


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_signals_set_stop(number: signal.Signals) -> None:
    stop = asyncio.Event()
    with stop_on_signals(stop):
        os.kill(os.getpid(), number)
        async with asyncio.timeout(30):
            await stop.wait()


@pytest.fixture
def sigint_ignored() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("sigint_ignored")
@pytest.mark.parametrize("handling", [lambda: stop_on_signals(asyncio.Event()), cancel_on_signals])
async def test_an_ignored_sigint_stays_ignored(handling: Callable[[], AbstractContextManager[None]]) -> None:
    """Ctrl-C in the terminal is not meant for a script's background job; SIGTERM is."""
    with handling():
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


@pytest.mark.parametrize(
    ("factory", "loop"), [(uvloop.new_event_loop, uvloop.Loop), (asyncio.new_event_loop, asyncio.SelectorEventLoop)]
)
def test_run_uses_the_loop_of_the_factory_and_returns_the_exit_code(
    factory: Callable[[], asyncio.AbstractEventLoop], loop: type[asyncio.AbstractEventLoop]
) -> None:
    async def main() -> int:
        assert isinstance(asyncio.get_running_loop(), loop)
        return 7

    assert run(main, factory) == 7


def test_the_clock_is_near_wall_time_and_advances_with_the_monotonic_clock() -> None:
    clock = Clock()
    assert abs(clock.now() - time.time()) < 1.0
    wall, steady = clock.now(), clock.monotonic()
    assert clock.now() - wall == pytest.approx(clock.monotonic() - steady, abs=1.0)


def test_the_clock_does_not_follow_a_step_of_the_wall_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that is set back an hour moves nothing in a running process."""
    clock = Clock()
    before = clock.now()
    monkeypatch.setattr(time, "time", lambda: before - 3600)
    assert clock.now() >= before
