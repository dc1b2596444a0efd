"""The command's text output: durations, overviews, and jobs that it may not see."""

import io
from typing import Any

import msgspec
import pytest

from job_supervisor.cli.backend import DrillSubject, Readings, SeenStatus
from job_supervisor.cli.explain import explain
from job_supervisor.cli.foretold import consequences
from job_supervisor.cli.output import age, printable, write
from job_supervisor.cli.tables import overview
from servicekit.wording import duration, listed
from supervisor.decide.ranks import RankCounts
from supervisor.domain.ids import Host, JobName, NoticeId, Source
from supervisor.domain.notice import NoticeClass, NoticeState, SubjectKind
from supervisor.observability.views import AgentView, AgreementView, HostView, JobView, NoticeView


def _host(number: int, **changes: Any) -> HostView:
    return HostView(
        **{"host": f"w{number}", "node": f"n{number}", "worker": True, "agent": True, "stream": True, **changes}
    )


def _job(name: str = "ns/trainingjob.j", **changes: Any) -> JobView:
    fields: dict[str, Any] = {
        "job": JobName(name),
        "phase": "Running",
        "reason": "It runs.",
        "run": 1,
        "running": True,
        "workers": ["w1", "w2", "w3"],
        "exclusions": [],
        "min_workers": 2,
        "max_workers": 3,
        "host_states": [_host(1), _host(2), _host(3)],
    }
    return JobView(**{**fields, **changes})


def _view(*jobs: JobView, **changes: Any) -> SeenStatus:
    return SeenStatus(**{"now": 0.0, "jobs": list(jobs), "notices": [], "agents": [], **changes})


def _lines(view: SeenStatus, **options: Any) -> list[str]:
    """The overview as a pipe gets it."""
    stream = io.StringIO()
    write(stream, overview(Readings([("", view)]), **options))
    return stream.getvalue().splitlines()


def _said(job: JobView, **changes: Any) -> str:
    return "\n".join(explain(job, _view(job, **changes)))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-3, "0 s"),
        (0.4, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min"),
        (185, "3 min 5 s"),
        (7800, "2 h 10 min"),
        (3600, "1 h"),
        (4 * 86400 + 3 * 3600, "4 d 3 h"),
    ],
)
def test_durations_are_for_people(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, "-"), (42, "42s"), (185, "3m5s"), (7800, "2h10m"), (4e5, "4d15h")]
)
def test_ages_are_short(seconds: float | None, text: str) -> None:
    assert age(seconds) == text


@pytest.mark.parametrize(
    ("names", "text"), [([], ""), (["a"], "a"), (["a", "b"], "a and b"), (["a", "b", "c"], "a, b and c")]
)
def test_names_are_listed(names: list[str], text: str) -> None:
    """As one would say them."""
    assert listed(names) == text


@pytest.mark.parametrize("letter", ["\n", "\r", "\x1b", "\x9b", "\t", "\u2028", "\u202e", "\x00"])
def test_no_line_of_a_peer_is_more_than_a_line(letter: str) -> None:
    """Nothing that a terminal would obey, and no row that nobody wrote."""
    assert printable(f"x{letter}FAKE") == "x\N{REPLACEMENT CHARACTER}FAKE"


def test_what_is_not_stored_yet_is_listed_and_says_so() -> None:
    stored = NoticeView(
        id=NoticeId("a"), source=Source("aliyun"), subject="n1", state=NoticeState.ACTIVE, seconds_left=90.0
    )
    waiting = NoticeView(
        id=NoticeId("a"), source=Source("aliyun"), subject="n1", state=NoticeState.ACTIVE, seconds_left=30.0
    )
    other = NoticeView(id=NoticeId("b"), source=Source("aws"), subject="n2", state=NoticeState.ACTIVE)
    rows = _lines(_view(notices=[stored], unconfirmed=[waiting, other]))[3:5]
    assert [row.split()[:4] for row in rows] == [
        ["node/n1", "30", "s", "aliyun"],
        ["node/n2", "unknown", "aws", "(not"],
    ]
    assert all("(not stored yet)" in row for row in rows)


def test_agents_of_nodes_that_were_reclaimed_are_not_unknown() -> None:
    agents = [
        AgentView(node=Host("n1"), connected=True),
        AgentView(node=Host("n2"), connected=False),
        AgentView(node=Host("n3"), connected=False, reclaimed=True),
    ]
    assert _lines(_view(agents=agents))[-1] == "1 agent is connected; unknown: n2; reclaimed: n3."
    assert _lines(_view(agents=agents[:1]))[-1] == "1 agent is connected."


def test_a_job_is_found_by_what_people_call_it() -> None:
    jobs = [_job("ns/trainingjob.j"), _job("other/trainingjob.j"), _job("j"), _job("k")]
    view = _view(*jobs)
    assert [job.job for job in view.find("j")] == ["j"]
    assert [job.job for job in view.find("ns/j")] == ["ns/trainingjob.j"]
    assert [job.job for job in view.find("other/trainingjob.j")] == ["other/trainingjob.j"]
    assert [job.job for job in _view(*jobs[:2]).find("j")] == ["ns/trainingjob.j", "other/trainingjob.j"]
    assert list(view.find("resnet")) == []


def test_a_covered_job_says_so_and_others_say_what_is_missing() -> None:
    assert "Covered: 3 workers, each with a live agent" in _said(_job())
    silent = _said(_job(host_states=[_host(number, agent=False) for number in range(8)]))
    assert "No agent is connected for w0, w1, w2, w3, w4 and 3 more" in silent
    assert "would come without a notice" in silent
    assert "No process" not in silent
    assert "No process on w2 has a stream" in _said(_job(host_states=[_host(1), _host(2, stream=False)]))


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        (RankCounts(processes=3), "No process is rank 0: none of the 3 that are connected knows its rank."),
        (RankCounts(processes=3, ranked=1), "No process is rank 0: 3 are connected, and none of them is it."),
        (RankCounts(processes=3, ranked=3, zeros=2), "2 processes say that they are rank 0"),
        (RankCounts(processes=3, ranked=3, zeros=1), ""),
        (RankCounts(), ""),
    ],
)
def test_a_job_is_not_covered_unless_one_process_is_rank_zero(counts: RankCounts, said: str) -> None:
    explained = _said(_job(ranks=counts))
    assert ("Not covered:" in explained) is bool(said)
    assert said in explained


def test_what_cannot_be_seen_is_not_called_covered() -> None:
    said = _said(_job(host_states=[_host(1, agent=None, stream=None)]), agents=None, unseen=["the streams."])
    assert "overed" not in said
    assert said.endswith("Not visible: the streams.")


def test_a_job_that_is_over_waits_for_nothing() -> None:
    said = _said(_job(phase="Finished", running=False, reason="The job has ended: succeeded.", host_states=[]))
    assert said.splitlines() == [
        "ns/trainingjob.j is Finished.",
        "  Why: The job has ended: succeeded.",
        "None of its hosts has a notice.",
        "Next: nothing, the job has ended.",
    ]


def test_a_notice_without_a_time_and_one_on_what_has_gone_are_said() -> None:
    notices = [
        NoticeView(id=NoticeId("a"), source=Source("aliyun"), subject="n1", state=NoticeState.ACTIVE),
        NoticeView(id=NoticeId("b"), source=Source("aws"), subject="n2", state=NoticeState.GONE),
    ]
    hosts = [_host(1, notice="a"), _host(2, notice="b")]
    said = _said(_job(host_states=hosts), notices=notices)
    assert "w1 on n1 will be gone at an unknown time, says aliyun." in said
    assert "w2 on n2: the notice of aws has ended (gone)." in said


def test_nodes_that_share_a_machine_uid_are_named() -> None:
    agents = [AgentView(node=Host(f"n{number:02}"), connected=True, same_uid=[Host("n99")]) for number in range(12)]
    said = _lines(_view(agents=[*agents, AgentView(node=Host("n50"), connected=True)]))
    assert said[-1].startswith("These nodes share a machine uid with another node: n00, n01, ")
    assert said[-1].endswith("n09 and 2 more.")


def test_the_most_urgent_notice_comes_first_and_ended_ones_are_not_listed() -> None:
    notices = [
        NoticeView(id=NoticeId("a"), source=Source("s"), subject="late", state=NoticeState.ACTIVE, seconds_left=90.0),
        NoticeView(id=NoticeId("b"), source=Source("s"), subject="unknown", state=NoticeState.ACTIVE),
        NoticeView(
            id=NoticeId("c"),
            source=Source("simulated"),
            simulated=True,
            subject="soon",
            state=NoticeState.ACTIVE,
            seconds_left=9.0,
        ),
        NoticeView(id=NoticeId("d"), source=Source("s"), subject="over", state=NoticeState.WITHDRAWN),
    ]
    lines = _lines(_view(notices=notices))
    shown = [line.split()[0] for line in lines if line.startswith("node/")]
    assert shown == ["node/soon", "node/late", "node/unknown"]
    assert [line for line in lines if "node/soon" in line and "simulated (drill)" in line]


@pytest.mark.parametrize(
    ("job", "part"),
    [
        (_job(), "continues with 2 of 3 workers"),
        (_job(min_workers=3), "saves a checkpoint, is suspended, and resumes"),
        (_job(host_states=[_host(1, launcher=True, worker=False)]), "because its launcher runs there"),
        (_job(fixed_hosts=True), "because its run cannot go on without a host"),
        (_job(running=False, phase="Suspended"), "will not start there"),
        (_job(phase="Finished"), "has ended: a notice there changes nothing for it"),
        (_job(host_states=[_host(2)]), "No supervised job is on node n1"),
    ],
)
def test_what_a_drill_will_do_is_said_before(job: JobView, part: str) -> None:
    (said,) = consequences(DrillSubject(kind=SubjectKind.NODE, name="n1"), _view(job))
    assert part in said


def test_a_pod_is_one_of_its_own_namespace() -> None:
    view = _view(_job())
    assert view.concerned(SubjectKind.POD, "ns/w1")
    assert not view.concerned(SubjectKind.POD, "other/w1")
    assert not view.concerned(SubjectKind.POD, "ns/n1")


def test_a_pod_is_known_by_its_own_name_where_its_host_has_another_one() -> None:
    view = _view(_job(host_states=[msgspec.structs.replace(_host(1), pod="w1-xb2vq")]))
    assert view.concerned(SubjectKind.POD, "ns/w1-xb2vq")
    assert not view.concerned(SubjectKind.POD, "ns/w1")


def test_the_namespaces_of_a_clusters_jobs_are_a_column_unless_one_is_chosen() -> None:
    view = _view(_job("a/trainingjob.j", age_seconds=185.0), _job("standalone"))
    heads, first, second, *_ = [line.split() for line in _lines(view)]
    assert heads == ["NAMESPACE", "JOB", "PHASE", "RUN", "WORKERS", "EXCLUDED", "AGE", "REASON"]
    assert first[:7] == ["a", "trainingjob.j", "Running", "1", "3", "0", "3m5s"]
    assert second[:7] == ["-", "standalone", "Running", "1", "3", "0", "-"]
    assert _lines(view, namespace="a")[0].split()[0] == "JOB"


def test_the_wide_form_has_more_columns() -> None:
    heads, row, *_ = [line.split() for line in _lines(_view(_job(requested_workers=3, since_seconds=42.0)), wide=True)]
    assert heads[7:] == ["MIN", "MAX", "REQUESTED", "IN", "PHASE", "REASON"]
    assert row[7:11] == ["2", "3", "3", "42s"]


def test_a_job_is_found_by_the_name_that_o_name_prints() -> None:
    view = _view(_job("ns/trainingjob.j"), _job("k"))
    assert [job.job for job in view.find("job/ns/trainingjob.j")] == ["ns/trainingjob.j"]
    assert [job.job for job in view.find("trainingjob.j")] == ["ns/trainingjob.j"]
    assert [job.job for job in view.find("job/k")] == ["k"]


def _ahead(notice_class: NoticeClass, left: float | None = None) -> NoticeView:
    return NoticeView(
        id=NoticeId("a/n1/u"),
        source=Source("azure"),
        subject="n1",
        state=NoticeState.ACTIVE,
        seconds_left=left,
        jobs=[JobName("ns/trainingjob.j")],
        notice_class=notice_class,
        acted_on=False,
    )


def test_a_notice_that_is_ahead_is_explained_and_excludes_nothing() -> None:
    said = _said(_job(), notices=[_ahead(NoticeClass.SCHEDULED, 7200)])
    assert "Scheduled by azure: node n1 will be gone in 2 h. The job continues until that is near." in said
    assert "None of its hosts has a notice." in said
    assert "A hint of azure: node n1 may be reclaimed. The job continues." in _said(
        _job(), notices=[_ahead(NoticeClass.HINT)]
    )


def test_the_overview_names_the_class_of_a_notice_that_is_not_sudden() -> None:
    lines = _lines(_view(notices=[_ahead(NoticeClass.HINT)]))
    assert any("azure (hint)" in line for line in lines)


def test_a_waiting_job_can_use_hosts_whose_notices_are_ahead() -> None:
    job = _job("resnet", phase="Waiting", running=False, hosts=["n1"], host_states=[])
    view = _view(job, notices=[_ahead(NoticeClass.HINT)])
    assert [host.notice for host in view.hosts_of(job)] == [None]


@pytest.mark.parametrize(
    ("agreement", "sentence"),
    [
        ({"purpose": "stop"}, "The ranks are asked for a step after which all of them stop."),
        (
            {"purpose": "stop", "step": 9, "waits_for": "rank 3", "unread_seconds": 31.0},
            "It is proposed that all ranks stop after step 9. No answer yet: rank 3. Flag not read for 31 s.",
        ),
        ({"purpose": "checkpoint", "step": 9, "committed": True}, "All ranks save and continue after step 9."),
    ],
)
def test_an_agreement_is_explained(agreement: dict[str, Any], sentence: str) -> None:
    assert f"  {sentence}\n" in _said(_job(agreement=AgreementView(**agreement)))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({}, "The job asks for 2 to 3 hosts."),
        ({"worker_multiple": 2}, "The job asks for 2 to 3 hosts. Their number must be a multiple of 2."),
        ({"on_loss": "hold", "requested_workers": 3}, "The job holds its size of 3 hosts."),
        ({"gang": "PodGroup a demands 2 pods."}, "The job asks for 2 to 3 hosts. PodGroup a demands 2 pods."),
        ({"ignored": ["'wait' is ignored."]}, "The job asks for 2 to 3 hosts. 'wait' is ignored."),
    ],
)
def test_what_a_job_wants_on_a_loss_is_explained(changes: dict[str, Any], sentence: str) -> None:
    assert f"Run 1 is running on 3 hosts. {sentence}" in _said(_job(**changes))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({}, "ns/trainingjob.j continues with 2 of 3 workers until"),
        (
            {"min_workers": 1, "worker_multiple": 2, "workers": ["w1", "w2", "w3", "w4"]},
            "continues with 2 of 4 workers",
        ),
        ({"on_loss": "hold", "requested_workers": 3}, "because 2 of 3 workers would remain and it needs 3."),
        ({"min_workers": 2, "worker_multiple": 3}, "because 2 of 3 workers would remain and it needs 3."),
    ],
)
def test_a_drill_is_announced_by_what_the_job_wants_on_a_loss(changes: dict[str, Any], sentence: str) -> None:
    (said,) = consequences(DrillSubject(kind=SubjectKind.NODE, name="n1"), _view(_job(**changes)))
    assert sentence in said


def test_a_drain_is_told_as_one() -> None:
    """By whom, and once its time is over no longer as something that will be gone."""
    drain = NoticeView(
        id=NoticeId("a"),
        source=Source("operator"),
        subject="n1",
        state=NoticeState.ACTIVE,
        message="ann: kernel",
        seconds_left=60.0,
    )
    job = _job(host_states=[_host(1, notice="a", seconds_left=60.0)])
    assert "w1 on n1 is being drained by ann: kernel, and has to be empty in 1 min." in _said(job, notices=[drain])
    job = _job(host_states=[_host(1, notice="a", seconds_left=0.0)])
    assert "w1 on n1 is drained by ann: kernel." in _said(job, notices=[drain])
    over = msgspec.structs.replace(drain, seconds_left=0.0)
    (row,) = (line for line in _lines(_view(notices=[over])) if line.startswith("node/n1"))
    assert row.split() == ["node/n1", "drained", "operator", "(drain)", "-", "-", "ann:", "kernel"]


def test_a_notice_that_is_past_its_time_says_since_when() -> None:
    """Its machine is still there, or nobody has seen it go."""
    late = NoticeView(
        id=NoticeId("a"),
        source=Source("aliyun"),
        subject="n1",
        state=NoticeState.ACTIVE,
        seconds_left=0.0,
        overdue_seconds=720.0,
    )
    job = _job(host_states=[_host(1, notice="a", seconds_left=0.0, overdue_seconds=720.0)])
    assert "w1 on n1 was due 12 min ago, says aliyun." in _said(job, notices=[late])
    (row,) = (line for line in _lines(_view(notices=[late])) if line.startswith("node/n1"))
    assert row.split() == ["node/n1", "12", "min", "ago", "aliyun", "-", "-"]


@pytest.mark.parametrize("phase", ["Running", "Shrinking"])
def test_a_run_that_is_smaller_than_requested_says_why(phase: str) -> None:
    short = "3 of 4 requested hosts are in use. w4: noticed by aliyun."
    job = _job(phase=phase, requested_workers=4, shortfall=short)
    assert f"Smaller than requested: {short}" in _said(job)
    assert _lines(_view(job))[1].endswith(f"It runs. {short}")
