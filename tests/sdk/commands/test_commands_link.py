"""The threads that talk with the supervisor, without the rest of kubeai-run."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from kubeai.elastic.commands.link import LauncherLink, RunReportOutbox, SupervisorAccess
from kubeai.elastic.commands.orders import Confirmed, JobRequest, Lost, Ordered, RunnerEvent, RunReport
from kubeai.elastic.testing import FakeSupervisor

from tests.testkit.waiting import wait_until

JOB = JobRequest("job", "horovod", 1, 2, 2, 0.0, None)


@pytest.fixture
def outbox() -> RunReportOutbox:
    return RunReportOutbox()


@pytest.fixture
def events(tmp_path: Path, supervisor: FakeSupervisor, outbox: RunReportOutbox) -> Iterator[list[RunnerEvent]]:
    token = tmp_path / "token"
    token.write_text(FakeSupervisor.launcher_token, encoding="utf-8")
    put: list[RunnerEvent] = []
    link = LauncherLink(SupervisorAccess(supervisor.address, token, None), JOB, outbox, put.append)
    link.start()
    yield put
    link.stop(10)


def test_what_a_hello_said_is_confirmed_before_its_order_is_passed_on(
    events: list[RunnerEvent], outbox: RunReportOutbox
) -> None:
    wait_until(lambda: len(events) > 1, lambda: str(events))
    assert events[0] == Confirmed(outbox.latest)
    assert isinstance(events[1], Ordered)


def test_a_report_that_is_called_older_is_said_again_under_a_higher_revision(
    events: list[RunnerEvent], outbox: RunReportOutbox, supervisor: FakeSupervisor
) -> None:
    """Else the supervisor would never hear of the present state."""
    wait_until(lambda: len(events) > 1, lambda: str(events))
    supervisor.refuse(409, "older_revision", path="/v1/launchers/report")
    outbox.publish(RunReport(run=1))
    offered = outbox.latest.revision
    wait_until(lambda: outbox.latest.revision > offered, lambda: str(outbox.latest))
    supervisor.accept()
    supervisor.wait_for(lambda: supervisor.reports)
    assert supervisor.reports[0].body["run"] == 1
    assert supervisor.reports[0].body["revision"] > offered


def test_a_stream_that_ends_is_opened_again_and_says_the_present_state(
    events: list[RunnerEvent], outbox: RunReportOutbox, supervisor: FakeSupervisor
) -> None:
    wait_until(lambda: len(events) > 1, lambda: str(events))
    supervisor.refuse(503, "not_serving")
    outbox.publish(RunReport(run=7))
    supervisor.drop()
    wait_until(lambda: any(isinstance(event, Lost) for event in events), lambda: str(events))
    supervisor.accept()
    supervisor.wait_for(lambda: len(supervisor.hellos) > 1)
    assert supervisor.hellos[1].body["report"]["run"] == 7
    assert supervisor.hellos[1].body["instance"] == supervisor.hellos[0].body["instance"]
