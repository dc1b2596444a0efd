"""Reports and time change the state of notices about pods."""

from dataclasses import replace

import pytest

from supervisor.decide.notices import apply_report
from supervisor.domain.notice import Announcement, NoticeState, ReclaimNotice, Report, Subject, SubjectKind
from tests.supervisor.decide.decide_builders import POLICY, T0, notice, report

POD = Subject(SubjectKind.POD, "space/worker-0", "uid-1")


def pod_report(left: float | None = 30.0, *, session: int = 1, revision: int = 1) -> Report:
    return replace(report(left=left, session=session, revision=revision), subject=POD)


def pod_notice(state: NoticeState = NoticeState.ACTIVE, ended_at: float | None = None) -> ReclaimNotice:
    """A pod is to be gone 30 s after `T0`."""
    return replace(notice(1, left=30.0, state=state), subject=POD, ended_at=ended_at)


@pytest.mark.parametrize("left", [30.0, 0.0, -4000.0, None])
def test_a_pod_that_is_gone_stays_gone(left: float | None) -> None:
    """The next life of its agent, which still sees a pod that failed, tells of the same end."""
    gone = pod_notice(NoticeState.GONE, ended_at=T0 + 35)
    again = apply_report(gone, pod_report(left, session=2), T0 + 4030, POLICY)
    assert again == replace(gone, session=2)


def test_a_preemption_that_did_not_happen_is_taken_back() -> None:
    back = replace(pod_report(revision=2), announcement=Announcement.WITHDRAWN)
    for known in (pod_notice(), pod_notice(NoticeState.GONE, ended_at=T0 + 35)):
        after = apply_report(known, back, T0 + 120, POLICY)
        assert after is not None
        assert after.state is NoticeState.WITHDRAWN
    assert after is not None
    begun = apply_report(after, pod_report(revision=3), T0 + 200, POLICY)
    assert begun is not None
    assert (begun.state, begun.episode) == (NoticeState.ACTIVE, 2)
