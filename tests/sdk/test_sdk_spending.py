"""What a process says that it has spent its time on."""

import threading
import time
from typing import Any

import pytest
from kubeai.elastic import api as library
from kubeai.elastic import gates, regroup, spending
from kubeai.elastic.messages import Directive, DirectiveKind, DirectiveLine
from kubeai.elastic.monitor import Monitor
from kubeai.elastic.spending import ProcessTime, Spending
from kubeai.elastic.testing import FakeSupervisor

from tests.sdk.sdk_scripts import Start

_TRAINS = """
    import time
    import kubeai.elastic as kubeai
    from kubeai.elastic import reporter

    reporter._SPENT_SECONDS = 0.2  # not a minute
    kubeai.init(rank=lambda: 0)
    for step in range(100_000):
        time.sleep(0.005)
        kubeai.should_stop(step)
"""


def _stop(monitor: Monitor, kind: DirectiveKind = DirectiveKind.STOP) -> None:
    directive = Directive(kind, job="job", run=1, generation=7, reason="a test")
    monitor.receive(DirectiveLine(directive, 0.0, None, None, release=False))


def test_sums_grow_until_the_process_has_to_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    """From then on the supervisor knows what the job does."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monitor = Monitor()
    monitor.time = ProcessTime(born=90.0)
    monitor.resumed(500)
    monitor.set_rank(0)
    assert monitor.spent() is None, "no step is known"
    monitor.finished(501)
    now[0] = 160.0
    monitor.checkpoint_saved(540, 4.0)
    monitor.spend(Spending.AGREEING, 0.5)
    monitor.finished(550)
    monitor.finished(545)  # it has returned to the state before
    monitor.finished(560)
    said = monitor.spent()
    assert said is not None
    assert said.fields() == {
        "seconds": 70.0,
        "starting": 10.0,
        "saving": 4.0,
        "agreeing": 0.5,
        "first": 500,
        "highest": 560,
        "made": 65,
    }
    _stop(monitor, DirectiveKind.CHECKPOINT)
    now[0] = 170.0
    monitor.checkpoint_saved(560, 2.0)
    assert monitor.time.told(now[0]).seconds == 72.0, "nothing is known of what came after the save"  # type: ignore[union-attr]
    _stop(monitor)
    now[0] = 200.0
    monitor.checkpoint_saved(560, 20.0)
    said = monitor.spent()
    assert said is not None
    assert (said.seconds, said.spent[Spending.SAVING]) == (72.0, 6.0)
    monitor.set_rank(1)
    assert monitor.spent() is None, "rank 0 speaks for all"


def test_a_process_that_makes_no_step_says_nothing_of_that_time() -> None:
    """It may hang in a collective. With its next step it has been one that takes long."""
    process = ProcessTime(born=0.0)
    process.finished(1, 10.0)
    process.finished(5, 20.0)
    said = process.told(3600.0)
    assert said is not None
    assert (said.seconds, said.made) == (20.0, 0 + 4)
    process.finished(6, 3700.0)
    assert process.told(3700.0).seconds == 3700.0  # type: ignore[union-attr]
    process.stop(3710.0)
    process.finished(7, 3720.0)
    assert process.told(3720.0).seconds == 3710.0  # type: ignore[union-attr]


def test_an_agreed_change_of_rounds_is_measured() -> None:
    """The checkpoint of that step is no part of it, and a change after a loss is not measured."""
    process = ProcessTime(born=0.0)
    process.finished(1, 1.0)
    process.spend(Spending.CHANGING, 9.0)  # a rank was lost
    process.finished(1, 10.0)
    process.finished(2, 10.1)
    assert process.change_seconds is None
    process.spend(Spending.SAVING, 4.0)
    process.spend(Spending.AGREEING, 0.25)
    process.spend(Spending.CHANGING, 0.5)
    process.spend(Spending.CHANGING, 0.125)
    process.finished(3, 15.0)
    assert process.change_seconds == 0.875
    process.spend(Spending.AGREEING, 0.1)  # a checkpoint of all ranks
    process.finished(4, 15.2)
    assert process.change_seconds == 0.875


def test_a_change_is_measured_although_no_sample_saw_the_step_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """The step is sampled twice a second, and a change may take less."""
    monitor = Monitor()
    for step in (10, 20):
        monkeypatch.setattr(gates, "_step", step)
        monitor.spend(Spending.AGREEING, 0.25)
        monitor.spend(Spending.CHANGING, 0.125)
        assert monitor.time.change_seconds == (None if step == 10 else 0.375)


def test_a_save_in_the_background_is_no_time_without_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monitor = Monitor()
    monitor.set_rank(0)
    for finished, spent in ((10, 4.0), (30, 4.0), (None, 8.0)):
        monkeypatch.setattr(gates, "_step", finished)
        monitor.finished(9)
        monitor.checkpoint_saved(10, 4.0)
        assert monitor.time.told(0.0).spent[Spending.SAVING] == spent  # type: ignore[union-attr]


def test_a_forked_child_does_not_wait_for_its_parents_lock() -> None:
    session = library._session
    held = threading.Event()

    def hold() -> None:
        with session.monitor._changed:
            held.set()
            released.wait(30)

    released = threading.Event()
    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(30)
    session.is_child = True
    try:
        with regroup.changing():
            pass
    finally:
        session.is_child = False
        released.set()
        thread.join()


def test_rank_0_says_it_once_a_minute(supervisor: FakeSupervisor, start: Start) -> None:
    start(_TRAINS)
    supervisor.wait_for(lambda: _spent(supervisor)[3:])
    said = [report["spent"] for report in _spent(supervisor)]
    assert all(set(each) >= {"seconds", "starting", "first", "highest", "made"} for each in said)
    assert said[0]["seconds"] < said[-1]["seconds"]


def _spent(supervisor: FakeSupervisor) -> list[dict[str, Any]]:
    return [report for report in supervisor.reports_of("rank") if "spent" in report]


def test_a_process_is_as_old_as_the_kernel_says() -> None:
    before = time.monotonic()
    age = spending.seconds_since_start()
    assert age is not None
    assert before - age == pytest.approx(ProcessTime.of_this_process().born, abs=0.5)
