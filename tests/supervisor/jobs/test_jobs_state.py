import pytest

from supervisor.domain.ids import JobName
from supervisor.jobs.kind import JobState
from supervisor.jobs.trainingjob.kind import TRAININGJOB
from tests.supervisor.jobs.trainingjob.trainingjob_objects import job, pod, workers

_OLD, _NEW = "2023-11-14T22:13:20Z", "2023-11-14T23:00:00Z"


@pytest.mark.parametrize(
    ("phases", "wanted"),
    [
        (("Failed", "Running"), "launcher-b"),
        (("Running", "Failed"), "launcher-a"),
        (("Running", "Running"), "launcher-b"),
    ],
)
def test_of_several_launchers_the_last_one_counts_that_is_not_over(phases: tuple[str, str], wanted: str) -> None:
    """Those that failed may stay beside it, in whatever order they are listed."""
    launchers = [
        pod("launcher-a", phase=phases[0], creationTimestamp=_OLD),
        pod("launcher-b", phase=phases[1], creationTimestamp=_NEW),
    ]
    for pods in (launchers, launchers[::-1]):
        state = JobState.of(TRAININGJOB, JobName("team/trainingjob.bert"), job(), [*workers(2), *pods])
        assert state.launcher is not None
        assert state.launcher.key.name == f"bert-{wanted}"
        assert len(state.workers) == 2
