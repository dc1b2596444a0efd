"""`history` and `nodes`, computed from a status."""

import io
from typing import Any

from job_supervisor.cli.backend import Past, PastEntry, PastQuery, Readings, SeenStatus
from job_supervisor.cli.history import history_of, horizon
from job_supervisor.cli.output import write
from job_supervisor.cli.tables import nodes_table
from supervisor.domain.ids import Host, JobName, Source
from supervisor.domain.notice import NoticeState
from supervisor.observability.views import (
    AcknowledgementView,
    AgentView,
    GroupView,
    HostView,
    JobView,
    LeaderView,
    MachineView,
    NoticeView,
    SourceView,
)

_J = JobName("j")
_NOW = 1000.0


def _job(name: str = "j", **more: Any) -> JobView:
    fields: dict[str, Any] = {"run": 2, "running": True, "workers": ["n1"], "exclusions": [], "hosts": ["n1", "n2"]}
    return JobView(
        **{
            **fields,
            "job": JobName(name),
            "phase": "Running",
            "reason": "Run 2 is running.",
            "min_workers": 1,
            "max_workers": 2,
            "age_seconds": 900.0,
            "since_seconds": 100.0,
            **more,
        }
    )


def _group(**more: Any) -> GroupView:
    fields: dict[str, Any] = {"outcome": "stopped", "age_seconds": 300.0, "reason": "n1 goes.", "acknowledged": "saved"}
    return GroupView(job=_J, **{**fields, "step": 7, "steps_lost": 3, "suspended_seconds": 60.0, **more})


def _status(*jobs: JobView, **more: Any) -> SeenStatus:
    leader = LeaderView(name="", serving_seconds=7200.0)
    return SeenStatus(**{"now": _NOW, "jobs": list(jobs), "notices": [], "agents": [], "leader": leader, **more})


def _notice(**more: Any) -> NoticeView:
    fields: dict[str, Any] = {"id": "a", "source": "aliyun", "subject": "n1", "state": NoticeState.GONE}
    return NoticeView(**{**fields, "age_seconds": 310.0, "ended_seconds": 200.0, **more})


def test_what_happened_to_a_job_is_told_in_the_order_of_time() -> None:
    answer = AcknowledgementView(run=1, kind="saved", step=7, age_seconds=290.0)
    told = history_of(
        _status(_job(acknowledgement=answer), notices=[_notice()], groups=[_group()]), Past(), PastQuery()
    )
    assert [(entry.at, entry.subject, entry.what, entry.text) for entry in told] == [
        (100.0, "job/j", "Registered", "The supervisor knows the job."),
        (690.0, "node/n1", "noticed", "Will be reclaimed, says aliyun."),
        (
            700.0,
            "job/j",
            "Stopping",
            "n1 goes. Rank 0 saved a checkpoint at step 7. At least 3 steps were repeated. It was suspended for 1 min.",
        ),
        (
            710.0,
            "job/j",
            "Answer",
            "Last answer to a STOP: rank 0 of run 1 saved a checkpoint at step 7.",
        ),
        (800.0, "node/n1", "gone", "The notice of aliyun has ended."),
        (900.0, "job/j", "Running", "The latest reason: Run 2 is running."),
    ]


def test_a_job_that_is_still_suspended_and_answered_too_late_says_so() -> None:
    group = _group(suspended=True, suspended_seconds=250.0, late=True, steps_lost=None)
    told = history_of(_status(groups=[group]), Past(), PastQuery())
    assert [(entry.at, entry.what, entry.text) for entry in told] == [
        (700.0, "Stopping", "n1 goes. Rank 0 saved a checkpoint at step 7. That was too late."),
        (750.0, "Suspended", "Its hosts are free."),
    ]


def test_one_job_has_its_own_history() -> None:
    """With the notices on the hosts that it lists, and no others."""
    other, far = _job("k", hosts=[], workers=[]), _notice(id="b", subject="n9")
    told = history_of(_status(_job(), other, notices=[_notice(), far]), Past(), PastQuery(job=_J))
    assert {entry.subject for entry in told} == {"job/j", "node/n1"}


def test_a_decision_that_two_places_tell_is_told_once() -> None:
    job = _job(phase="Stopping", reason="n1 goes.", since_seconds=300.0)
    event = PastEntry(at=699.0, subject="job/j", what="Stopping", text="n1 goes.", jobs=[_J])
    earlier = PastEntry(at=50.0, subject="job/j", what="Stopping", text="Long ago.", jobs=[_J])
    told = history_of(_status(job, groups=[_group()]), Past(entries=[event, earlier]), PastQuery())
    assert [entry.at for entry in told if entry.what == "Stopping"] == [50.0, 699.0]


def test_a_timeline_is_told_as_it_is_with_the_outcome_of_each_stop() -> None:
    """Its entries may be close to each other; of the notices that are stored, those from before it are told."""
    entries = [
        PastEntry(at=690.0, subject="node/n1", what="noticed", text="Node n1 will be reclaimed, says aliyun."),
        PastEntry(at=700.0, subject="job/j", what="Stopping", text="n1 goes."),
        PastEntry(at=701.0, subject="job/j", what="Stopping", text="n1 goes. All ranks save after step 7."),
        PastEntry(at=702.0, subject="job/j", what="Checkpoint", text="Rank 0 saved a checkpoint at step 7."),
    ]
    notices = [_notice(), _notice(id="b", source="gcp", age_seconds=900.0, ended_seconds=800.0)]
    status = _status(_job(), notices=notices, groups=[_group()])
    told = history_of(status, Past(entries=entries, since=600.0), PastQuery(job=_J))
    assert [(entry.at, entry.what) for entry in told] == [
        (100.0, "noticed"),
        (200.0, "gone"),
        (690.0, "noticed"),
        (700.0, "Stopping"),
        (701.0, "Stopping"),
        (702.0, "Checkpoint"),
    ]
    assert told[3].text == "n1 goes. Outcome: At least 3 steps were repeated. It was suspended for 1 min."
    assert horizon(status, Past(since=600.0)) == ["The record begins 6 min 40 s ago."]
    assert horizon(status, Past(since=600.0, is_cut=True))[0].endswith("the earliest are left out: --limit shows more.")


def test_only_what_is_asked_for_is_told() -> None:
    """Of the time before a record as of a cluster's Events."""
    drill, other = _notice(id="b", source="simulated", simulated=True), _notice(id="c", source="gcp", subject="n9")
    status = _status(_job(), notices=[_notice(), drill, other], groups=[_group()])

    def told(past: Past, **wanted: Any) -> set[tuple[str, str]]:
        return {(entry.subject, entry.what) for entry in history_of(status, past, PastQuery(**wanted))}

    assert told(Past(), source="gcp") == {("node/n9", "noticed"), ("node/n9", "gone")}
    assert told(Past(), node="n9") == told(Past(since=950.0), node="n9") == told(Past(), source="gcp")
    assert told(Past(), since=750.0) == {("node/n1", "gone"), ("node/n9", "gone"), ("job/j", "Running")}
    assert [entry.source for entry in history_of(status, Past(since=950.0), PastQuery(job=_J, drills=False))] == [
        "aliyun",
        "aliyun",
    ]


def test_how_far_back_it_goes_is_said() -> None:
    assert "began to serve, 2 h ago, and at most the last 50" in horizon(_status(), Past())[0]
    assert "keeps for an hour by default" in horizon(_status(leader=None), Past())[0]


def _shown(status: SeenStatus, *, wide: bool = False) -> list[list[str]]:
    stream = io.StringIO()
    write(stream, nodes_table(Readings([("", status)]), wide=wide))
    return [line.split() for line in stream.getvalue().splitlines()]


def test_each_node_has_a_row() -> None:
    """Those that agents, notices or jobs name; what is unknown is neither clear nor noticed."""
    agents = [
        AgentView(node=Host("n1"), connected=True, sources=[SourceView(source=Source("aliyun"), state="noticed")]),
        AgentView(
            node=Host("n2"),
            connected=False,
            silent_seconds=42.0,
            sources=[SourceView(source=Source("aliyun"), state="unknown")],
        ),
        AgentView(node=Host("n4"), connected=False, reclaimed=True, silent_seconds=60.0),
    ]
    notice = _notice(state=NoticeState.ACTIVE, ended_seconds=None, seconds_left=65.0)
    job = _job(
        host_states=[
            HostView(host=Host("n1"), node=Host("n1"), worker=True),
            HostView(host=Host("n3"), node=Host("n3")),
        ]
    )
    assert _shown(_status(job, agents=agents, notices=[notice])) == [
        ["NODE", "AGENT", "SILENT", "SOURCES", "NOTICE", "JOBS"],
        ["n1", "connected", "-", "aliyun=noticed", "1m5s", "aliyun", "j"],
        ["n2", "unknown", "42s", "aliyun=unknown", "-", "-"],
        ["n3", "none", "-", "-", "-", "j"],
        ["n4", "reclaimed", "1m", "-", "-", "-"],
    ]


def test_what_the_cloud_tells_of_a_machine_is_shown_where_it_is_known() -> None:
    machine = MachineView(instance_type="ecs.gn7i", zone="cn-a", price_class="spot")
    agents = [
        AgentView(node=Host("n1"), connected=True, machine=machine),
        AgentView(node=Host("n2"), connected=True, machine=MachineView(price_class="unknown")),
    ]
    rows = _shown(_status(agents=agents))
    assert rows[0][5:] == ["TYPE", "ZONE", "PRICE", "JOBS"]
    assert rows[1][5:] == ["ecs.gn7i", "cn-a", "spot", "-"]
    assert rows[2][5:] == ["-", "-", "-", "-"]


def test_where_agents_cannot_be_seen_no_node_is_called_silent() -> None:
    notice = _notice(state=NoticeState.ACTIVE, ended_seconds=None, seconds_left=None)
    assert _shown(_status(agents=None, notices=[notice]))[1] == ["n1", "-", "-", "-", "unknown", "aliyun", "-"]
    assert _shown(_status()) == [["No", "nodes."]]
