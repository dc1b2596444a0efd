"""`status --watch`: one event for each change between two looks."""

from typing import Any

from job_supervisor.cli.backend import SeenStatus
from job_supervisor.cli.showing import changes
from supervisor.domain.ids import Host, JobName
from supervisor.domain.notice import NoticeState
from supervisor.observability.views import AgentView, JobView, NoticeView


def _job(name: str, phase: str = "Running", reason: str = "It runs.", **more: Any) -> JobView:
    fields: dict[str, Any] = {"run": 1, "running": True, "workers": [], "exclusions": []}
    return JobView(
        **{**fields, "job": JobName(name), "phase": phase, "reason": reason, "min_workers": 1, "max_workers": 2, **more}
    )


def _notice(state: NoticeState = NoticeState.ACTIVE, **more: Any) -> NoticeView:
    return NoticeView(**{"id": "a", "source": "aliyun", "subject": "n1", "state": state, "seconds_left": 90.0, **more})


def _status(*jobs: JobView, **more: Any) -> SeenStatus:
    return SeenStatus(**{"now": 100.0, "jobs": list(jobs), "notices": [], "agents": [], **more})


def _told(before: SeenStatus | None, after: SeenStatus) -> list[tuple[str, str, str]]:
    return [(event.subject, event.what, event.text) for event in changes(before, after)]


def test_the_first_look_tells_what_there_is() -> None:
    agents = [AgentView(node=Host("n1"), connected=True), AgentView(node=Host("n2"), connected=False)]
    ended = _notice(NoticeState.GONE, id="b")
    assert _told(None, _status(_job("j"), notices=[_notice(), ended], agents=agents)) == [
        ("node/n1", "noticed", "Will be gone in 1 min 30 s, says aliyun."),
        ("job/j", "Running", "It runs."),
        ("agent/n2", "unknown", "The agent is silent: nobody can say whether the node will be reclaimed."),
    ]


def test_what_stays_the_same_is_not_told_again() -> None:
    """Deadlines that come nearer are no change."""
    agents = [AgentView(node=Host("n1"), connected=True)]
    before = _status(_job("j", since_seconds=1.0), notices=[_notice()], agents=agents)
    after = _status(_job("j", since_seconds=9.0), notices=[_notice(seconds_left=80.0)], agents=agents)
    assert _told(before, after) == []


def test_each_change_is_one_event() -> None:
    before = _status(_job("j"), _job("gone"), notices=[_notice()], agents=[AgentView(node=Host("n1"), connected=True)])
    agents = [AgentView(node=Host("n1"), connected=False, reclaimed=True), AgentView(node=Host("n3"), connected=True)]
    shrinking = _job("j", "Shrinking", "n1 goes.", exclusions=["n1"])
    after = _status(shrinking, notices=[_notice(NoticeState.GONE)], agents=agents)
    assert _told(before, after) == [
        ("node/n1", "gone", "The notice of aliyun has ended."),
        ("job/j", "Shrinking", "n1 goes."),
        ("job/gone", "forgotten", "The supervisor no longer knows it."),
        ("agent/n1", "reclaimed", "The agent is silent, as its node was reclaimed."),
        ("agent/n3", "connected", "The agent is connected."),
    ]


def test_where_agents_cannot_be_seen_nothing_is_said_of_them() -> None:
    assert _told(None, _status(agents=None)) == []
    assert _told(_status(agents=None), _status(agents=None)) == []
