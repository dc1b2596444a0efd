"""A drill passes only if what it has seen is what the product promises."""

import pytest

from job_supervisor.dev.command import SampleProgress, resumed, shrunk, stopped
from supervisor.observability.views import AcknowledgementView

HOSTS = ["host-1", "host-2"]
LAST = SampleProgress(first_step=0, step=40, loss=1.0, hosts=HOSTS)


@pytest.mark.parametrize(("run", "holds"), [(1, True), (2, False)])
def test_a_shrink_that_restarted_the_job_does_not_pass(run: int, *, holds: bool) -> None:
    assert shrunk("host-2", run).holds is holds


@pytest.mark.parametrize(
    ("answer", "holds"),
    [
        (AcknowledgementView(run=1, kind="saved", step=40), [True, True]),
        (AcknowledgementView(run=1, kind="saved", step=39), [True, False]),
        (AcknowledgementView(run=1, kind="saved"), [False]),
        (AcknowledgementView(run=1, kind="left"), [False]),
        (None, [False]),
    ],
)
def test_a_stop_passes_only_if_the_last_step_was_saved(answer: AcknowledgementView | None, holds: list[bool]) -> None:
    assert [check.holds for check in stopped(answer, LAST)] == holds


@pytest.mark.parametrize(
    ("first", "hosts", "holds"),
    [(40, HOSTS, [True, True]), (0, HOSTS, [False, True]), (39, HOSTS, [False, True]), (40, ["host-1"], [True, False])],
)
def test_a_resume_passes_only_at_the_last_step_and_on_all_hosts(
    first: int, hosts: list[str], holds: list[bool]
) -> None:
    again = SampleProgress(first_step=first, step=60, loss=1.0, hosts=hosts)
    assert [check.holds for check in resumed(LAST, again, HOSTS)] == holds
