"""A fault that nobody foresaw stays with its key."""

import asyncio

import pytest
from structlog.testing import capture_logs

from servicekit.bulkhead import Bulkhead, ProcessFault
from servicekit.clock import Clock
from tests.testkit.clocks import HandClock


def test_a_fault_is_counted_logged_with_its_traceback_and_shown_until_the_work_succeeds() -> None:
    bulkhead = Bulkhead(Clock())
    with capture_logs() as logs:
        with bulkhead.guard("plan", "job-1") as attempt:
            raise ZeroDivisionError("no steps")
        assert attempt.failed
        assert bulkhead.about("job-1") == {"plan": "ZeroDivisionError: no steps"}
        assert bulkhead.about("job-2") == {}
        with bulkhead.guard("plan", "job-1") as attempt:
            pass
    assert not attempt.failed
    assert bulkhead.about("job-1") == {}
    assert bulkhead.counts == {"plan": 1}
    fault, recovered = logs
    assert (fault["event"], fault["where"], fault["key"]) == ("internal.fault", "plan", "job-1")
    assert "raise ZeroDivisionError" in fault["exception"]
    assert (recovered["event"], recovered["failures"]) == ("internal.recovered", 1)


def test_pauses_grow_and_belong_to_one_key() -> None:
    """The bound of the pause doubles to ten seconds; another key need not wait."""
    time = HandClock(steady=0.0)
    bulkhead = Bulkhead(time)
    for _ in range(20):
        with bulkhead.guard("plan", "job-1") as attempt:
            raise LookupError("no")
        assert attempt.retry_in is not None
        assert 0 <= attempt.retry_in <= 10
        assert bulkhead.pause("plan", "job-1") == pytest.approx(attempt.retry_in)
    assert bulkhead.pause("plan", "job-2") == bulkhead.pause("observe", "job-1") == 0
    time.steady += 10
    assert bulkhead.pause("plan", "job-1") == 0


def test_the_same_fault_of_one_key_is_logged_once_a_minute() -> None:
    time = HandClock(steady=0.0)
    bulkhead = Bulkhead(time)
    with capture_logs() as logs:
        for _ in range(5):
            with bulkhead.guard("journal", "metrics", retried=False):
                raise LookupError("no")
            with bulkhead.guard("journal", "events", retried=False):
                raise LookupError("no")
        time.steady = 60
        with bulkhead.guard("journal", "metrics", retried=False):
            raise LookupError("no")
    assert [line["key"] for line in logs] == ["metrics", "events", "metrics"]
    assert bulkhead.counts == {"journal": 11}
    assert bulkhead.about("metrics") == {}


def test_a_part_of_a_key_is_found() -> None:
    bulkhead = Bulkhead(Clock())
    with bulkhead.guard("act", ("run", "job-1")):
        raise LookupError("no")
    assert bulkhead.about("job-1") == {"act": "LookupError: no"}


async def test_what_concerns_the_whole_process_passes() -> None:
    """Cancellation, loss of leadership, lack of memory, also within groups, and errors that the caller has foreseen."""
    bulkhead = Bulkhead(Clock())
    for error in (
        asyncio.CancelledError(),
        KeyboardInterrupt(),
        ProcessFault("lost"),
        MemoryError(),
        ExceptionGroup("both", [LookupError("no"), ExceptionGroup("one", [ProcessFault("lost")])]),
        OSError("foreseen"),
    ):
        with pytest.raises(type(error)), bulkhead.guard("plan", "job-1", passes=OSError):
            raise error
    assert bulkhead.counts == {"plan": 0}


def test_a_group_of_faults_is_told_by_its_first() -> None:
    bulkhead = Bulkhead(Clock())
    with bulkhead.guard("act", "job-1"):
        raise ExceptionGroup("unhandled errors in a TaskGroup", [LookupError("no such host\n\x1b[31m")])
    assert bulkhead.about("job-1") == {"act": "LookupError: no such host  [31m"}


def test_keys_without_end_cost_bounded_memory() -> None:
    """Whoever chooses the keys cannot fill the memory; each fault is still counted and has a pause."""
    bulkhead = Bulkhead(Clock())
    with capture_logs():
        for number in range(20_001):
            with bulkhead.guard("watch", f"pod-{number}") as attempt:
                raise LookupError("no")
            assert attempt.failed
    assert bulkhead.counts == {"watch": 20_001}
    assert bulkhead.about("pod-9999")
    assert not bulkhead.about("pod-20000")


def test_an_endless_recursion_is_logged_in_brief() -> None:
    bulkhead = Bulkhead(Clock())

    def recurse() -> None:
        recurse()

    with capture_logs() as logs, bulkhead.guard("plan", "job-1"):
        recurse()
    assert logs[0]["error"].startswith("RecursionError")
    assert len(logs[0]["exception"].splitlines()) < 100


async def test_what_a_callback_of_the_loop_raises_is_counted() -> None:
    loop, bulkhead, called = asyncio.get_running_loop(), Bulkhead(Clock()), asyncio.Event()

    def callback() -> None:
        called.set()
        raise LookupError("no")

    loop.set_exception_handler(bulkhead.on_loop_error)
    try:
        with capture_logs() as logs:
            loop.call_soon(callback)
            await called.wait()
            await asyncio.sleep(0)
    finally:
        loop.set_exception_handler(None)
    assert bulkhead.counts == {"callback": 1}
    assert [line["error"] for line in logs] == ["LookupError: no"]
