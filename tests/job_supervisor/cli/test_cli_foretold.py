"""`simulate` foretells what the supervisor then decides, and with `--wait` misses nothing of it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, cast

import msgspec
import pytest

from job_supervisor.cli import steering
from job_supervisor.cli.backend import STREAMS_UNSEEN, Backend, DrillSubject, Past, PastQuery, SeenStatus, pod_of
from job_supervisor.cli.cluster_status import status_of
from job_supervisor.cli.errors import NotNowError
from job_supervisor.cli.foretold import consequences
from job_supervisor.cli.history import history_of
from servicekit.kubernetes.objects import Metadata
from supervisor.decide.policy import Policy
from supervisor.domain.capacity import Placement
from supervisor.domain.ids import STANDALONE, Host, JobName, NoticeId, Source, kind_of
from supervisor.domain.job import ELASTIC, Capability, Framework, OnLoss, Phase, RequestKind, Spec, SupervisedJob
from supervisor.domain.notice import NoticeState, SubjectKind
from supervisor.observability.status_view import JobFactsSnapshot, StatusSnapshot, status_view
from supervisor.observability.views import (
    AcknowledgementView,
    HostView,
    JobView,
    LeaderView,
    NoticeView,
    RequestView,
)
from supervisor.store.codec import CustomResource, StoredRecord
from tests.supervisor.decide.decide_builders import T0, decide, first, notice, noticed, observing, running_job, seeing

NODE = DrillSubject(kind=SubjectKind.NODE, name="n1")
POD = DrillSubject(kind=SubjectKind.POD, name="ns/w1-xb2vq")

STOPS = "saves a checkpoint, is suspended, and resumes as a new run when there is capacity, because "
GIVES_UP = "gives up the run that it is starting, and resumes as a new run when there is capacity, because "
NOTHING = "a notice there changes nothing for it."


def _host(number: int, **changes: Any) -> HostView:
    return HostView(**{"host": f"w{number}", "node": f"n{number}", "worker": True, **changes})


def _job(name: str = "ns/trainingjob.j", *, states: Sequence[HostView] | None = None, **changes: Any) -> JobView:
    """A job that runs on w1 to w4, which are on n1 to n4."""
    fields: dict[str, Any] = {
        "job": JobName(name),
        "phase": "Running",
        "reason": "It runs.",
        "run": 1,
        "running": True,
        "workers": ["w1", "w2", "w3", "w4"],
        "exclusions": [],
        "min_workers": 3,
        "max_workers": 4,
        "fixed_hosts": False,
        "host_states": [_host(number) for number in (1, 2, 3, 4)] if states is None else states,
    }
    return JobView(**{**fields, **changes})


def _status(*jobs: JobView, **changes: Any) -> SeenStatus:
    return SeenStatus(**{"now": 0.0, "jobs": list(jobs), "notices": [], **changes})


def _told(job: JobView, subject: DrillSubject = NODE) -> str:
    """What is foretold of the only job, without its name."""
    (said,) = consequences(subject, _status(job))
    return said.removeprefix(f"{job.job} ")


def test_hosts_that_go_already_are_none_that_stay() -> None:
    """The supervisor counts the notices of all hosts, whichever announces the last one."""
    states = [_host(1), _host(2, notice="aws/n2/u"), _host(3), _host(4)]
    said = _told(_job(states=states))
    assert said == f"{STOPS}2 of 4 workers (1 has a notice already) would remain and it needs 3."
    said = _told(_job(states=states, min_workers=2))
    assert said == "continues with 2 of 4 workers (1 has a notice already) until the drill is over."


def test_hosts_that_are_left_out_are_none_that_stay() -> None:
    states = [_host(1), _host(2, worker=False, excluded=True), _host(3), _host(4)]
    said = _told(_job(states=states, workers=["w1", "w3", "w4"], exclusions=["w2"]))
    assert said == f"{STOPS}2 of 3 workers would remain and it needs 3."


def test_hosts_that_the_run_has_lost_are_none_that_stay() -> None:
    said = _told(_job(states=[_host(1), _host(2, worker=False), _host(3), _host(4)]))
    assert said == f"{STOPS}2 of 4 workers would remain and it needs 3."


def test_a_notice_on_a_host_that_is_left_out_already_changes_nothing() -> None:
    states = [_host(1, worker=False, excluded=True), _host(2), _host(3), _host(4)]
    out: Mapping[str, Any] = {"states": states, "workers": ["w2", "w3", "w4"], "exclusions": ["w1"]}
    assert _told(_job(**out)) == f"leaves out its hosts there already: {NOTHING}"
    # But it is a notice on a host of the run, which such a run cannot do without.
    assert _told(_job(**out, fixed_hosts=True)) == f"{STOPS}its run cannot go on without a host."


def test_a_notice_on_the_launchers_host_stops_the_job_whatever_else_goes() -> None:
    launcher = HostView(host=Host("j-launcher"), node=Host("n9"), launcher=True, notice=NoticeId("aws/n9/u"))
    said = _told(_job(states=[launcher, _host(1), _host(2), _host(3), _host(4)], min_workers=1))
    assert said == f"{STOPS}its launcher's host has a notice already."


_BY_ANN = {kind: RequestView(kind=kind, by="ann") for kind in RequestKind}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"phase": "Stopping"}, "is stopping already, and will not resume there until the drill is over."),
        ({"phase": "Suspended"}, "is Suspended, and will not start there until the drill is over."),
        ({"phase": "Finished"}, f"has ended: {NOTHING}"),
        ({"phase": "TimedOut", "running": False}, f"has ended: {NOTHING}"),
        ({"result": "succeeded"}, f"has ended: {NOTHING}"),
        (
            {"phase": "Stopping", "request": _BY_ANN[RequestKind.STOP]},
            f"is Stopping, as ann has stopped it: {NOTHING}",
        ),
        (
            {"phase": "Suspended", "running": False, "request": _BY_ANN[RequestKind.SUSPEND]},
            f"is Suspended, as ann has suspended it: {NOTHING}",
        ),
        ({"request": _BY_ANN[RequestKind.SUSPEND]}, f"is Running, as ann has suspended it: {NOTHING}"),
        (
            {"phase": "Resuming", "running": False},
            "continues with 3 of 4 workers until the drill is over.",
        ),
        (
            {"phase": "Resuming", "running": False, "min_workers": 4},
            f"{GIVES_UP}3 of 4 workers would remain and it needs 4.",
        ),
        (
            {"running": False},
            "has no run at present: whether it stops depends on whether its controller starts another.",
        ),
        (
            {"phase": "Dreaming"},
            "is Dreaming, which this command does not know: it cannot say what a notice there does.",
        ),
    ],
)
def test_what_becomes_of_a_job_depends_on_its_phase(changes: Mapping[str, Any], said: str) -> None:
    assert _told(_job(**changes)) == said


@pytest.mark.parametrize(("phase", "starter"), [("Waiting", "controller"), ("Queued", "queue")])
def test_a_job_that_others_start_may_still_start_there(phase: str, starter: str) -> None:
    """The supervisor keeps no controller from starting pods that have their node."""
    assert _told(_job(phase=phase, running=False)) == (
        f"is {phase}: if its {starter} starts it there before the drill is over, it goes on without these hosts or "
        "stops, as a running job does."
    )


def test_a_waiting_job_of_a_launcher_of_ours_starts_elsewhere_or_not_at_all() -> None:
    """The supervisor starts it, and never while its launcher's host has a notice."""
    waits: Mapping[str, Any] = {"phase": "Waiting", "running": False, "workers": []}
    here = HostView(host=Host("n1"), node=Host("n1"))
    assert _told(_job("resnet", states=[here], **waits)) == (
        "is Waiting, and will not start there until the drill is over."
    )
    launcher = msgspec.structs.replace(here, launcher=True)
    assert _told(_job("resnet", states=[launcher], **waits)) == (
        "is Waiting, and will not start until the drill is over, because its launcher runs there."
    )


def test_a_supervisor_that_does_not_say_whether_a_run_needs_all_hosts_is_not_guessed_at() -> None:
    older = msgspec.to_builtins(_job())
    del older["fixed_hosts"]
    job = msgspec.convert(older, JobView)
    assert _told(job) == (
        "continues with 3 of 4 workers until the drill is over, unless its run cannot go on without a host: this "
        "supervisor is too old to say so."
    )
    # The launcher of `kubeai-run` goes on without a host.
    alone = msgspec.structs.replace(job, job=JobName("resnet"))
    assert _told(alone) == "continues with 3 of 4 workers until the drill is over."


def test_what_hides_jobs_or_notices_is_said_with_what_is_foretold() -> None:
    hidden = "notices: you may not list ReclaimNotices."
    status = _status(_job(), unseen=[STREAMS_UNSEEN, hidden])
    assert consequences(NODE, status)[1:] == [f"Not visible: {hidden}"]
    places = "which nodes the pods of jobs are on: you may not list pods."
    assert consequences(NODE, _status(unseen=[STREAMS_UNSEEN, places])) == [
        "No supervised job is seen on node n1.",
        f"Not visible: {places}",
    ]


def test_the_jobs_of_other_namespaces_are_not_denied() -> None:
    """A node has pods of all namespaces, a pod is in one."""
    said = consequences(NODE, _status(namespace="ns"))
    assert said == [
        "No supervised job is seen on node n1.",
        "Not visible: jobs outside of the namespace ns, which may have hosts there as well.",
    ]
    assert consequences(POD, _status(namespace="ns")) == [
        "No supervised job is on pod ns/w1-xb2vq: only a notice is created."
    ]


# What is foretold, and what the supervisor decides.

REPLICAS = frozenset({Capability.MAKES_HOSTS, Capability.STARTS_RUNS, Capability.SIGNALS_PODS})
GROWING = REPLICAS | {Capability.GROWS, Capability.REPLACES_HOSTS}
FIXED = REPLICAS | {Capability.FIXED_HOSTS}
POLICY = replace(Policy(), window_seconds=0.0)

SIZES: Sequence[Mapping[str, Any]] = [
    *({"min_workers": least} for least in (1, 2, 3, 4)),
    *({"min_workers": least, "worker_multiple": 2} for least in (1, 3)),
    {"min_workers": 2, "on_loss": OnLoss.HOLD},
    {"min_workers": 2, "on_loss": OnLoss.HOLD, "requested_workers": 2},
]


def _places(job: SupervisedJob, together: int) -> Mapping[Host, Placement] | None:
    """The first `together` hosts of a cluster's job on n1, the others on a node each; None for nodes themselves."""
    if kind_of(job.name) == STANDALONE:
        return None
    ordered = [*sorted(job.decision.hosts), *sorted(job.own_hosts - job.decision.hosts)]
    nodes = ["n1" if number < together else f"n{number + 1}" for number in range(len(ordered))]
    return {
        host: Placement(f"uid-{host}", Host(node), name=f"{host}-x") for host, node in zip(ordered, nodes, strict=True)
    }


def _seen(job: SupervisedJob, before: Sequence[int], places: Mapping[Host, Placement] | None) -> SeenStatus:
    """The status with notices on the hosts of `before`."""
    facts = JobFactsSnapshot(
        job=job, noticed=noticed(*map(notice, before)), placements=places, streams=frozenset(), since=None
    )
    view = status_view(
        StatusSnapshot(
            now=T0,
            policy=POLICY,
            leader=LeaderView(name="", serving_seconds=0.0),
            jobs=(facts,),
            notices=(),
            unconfirmed=(),
            groups=(),
            agents={},
            silent={},
            refused={},
        )
    )
    return _status(*view.jobs)


def _cases(name: str, can: frozenset[Capability]) -> Iterator[tuple[SupervisedJob, Sequence[int], int]]:
    """Jobs of a kind on n1 to n4 (`launcher` is a host of its own), other notices, and how many hosts are on n1."""
    phases = (Phase.RUNNING, Phase.SHRINKING, Phase.RESUMING)
    launchers = (None, Host("n1"), Host("n3"), Host("launcher"))
    lost, together = ((), (3,), (1,), (2, 3)), (1, 2) if can else (1,)
    for phase, size, launcher, before, count in product(phases, SIZES, launchers, lost, together):
        spec = Spec(
            framework=Framework.HOROVOD,
            max_workers=4,
            capabilities=can,
            launcher_host=launcher,
            **{"requested_workers": 4, **size},
        )
        job = running_job(spec, 4, name=name)
        if phase is Phase.RESUMING:
            decision = replace(job.decision, run=2, resume_until=T0 + 600)
            job = observing(replace(job, decision=decision), running=False)
        for excluded in ((), before):  # Before and after the supervisor has acted on the other notices.
            exclusions = frozenset(Host(f"n{number}") for number in excluded)
            decision = replace(job.decision, phase=phase, exclusions=exclusions, excluded_at=5 if exclusions else 0)
            yield replace(job, decision=decision), before, count


@pytest.mark.parametrize(
    ("name", "can"),
    [
        ("resnet", frozenset()),
        ("ns/trainingjob.j", ELASTIC),
        ("ns/pytorchjob.j", GROWING),
        ("ns/tfjob.j", FIXED),
        ("ns/jobset.j", FIXED | {Capability.MOVES}),
    ],
)
def test_what_is_foretold_is_what_the_supervisor_decides(name: str, can: frozenset[Capability]) -> None:
    """For each kind's capabilities, size, place of the launcher, phase and other notices."""
    outcomes = set()
    for job, before, count in _cases(name, can):
        places = _places(job, count)
        (said,) = consequences(NODE, _seen(job, before, places))
        said = said.removeprefix(f"{name} ")
        affected = [Host("n1")] if places is None else [host for host, each in places.items() if each.node == "n1"]
        notices = noticed(*map(notice, before)) | {host: notice(1) for host in affected}
        decided = decide(job, seeing(notices), policy=POLICY).job.decision
        case = f"{said}\nof {job}\nwith notices on {before}, and now on {affected}"
        outcome = "continues"
        if decided.phase in (Phase.STOPPING, Phase.SUSPENDED):
            outcome = STOPS if job.observed.running else GIVES_UP
        elif set(affected) <= job.decision.exclusions:
            outcome = "leaves out its hosts there already"
        elif decided.phase is Phase.SHRINKING:
            outcome = f"continues with {len(decided.hosts - decided.exclusions)} of "
        assert said.startswith(outcome), case
        outcomes.add(outcome.partition(" ")[0])
    assert outcomes >= {"saves", "gives"}
    assert ("continues" in outcomes) is (Capability.FIXED_HOSTS not in can)


def test_a_host_that_is_left_out_for_the_size_is_no_replacement_at_once() -> None:
    spec = Spec(framework=Framework.HOROVOD, min_workers=2, max_workers=6, requested_workers=6, worker_multiple=2)
    job = running_job(spec, 5, name="resnet")
    job = replace(job, decision=replace(job.decision, exclusions=frozenset({Host("n5")})))
    decided = decide(job, seeing(noticed(notice(1))), policy=POLICY).job.decision
    assert len(decided.hosts - decided.exclusions) == 2
    assert consequences(NODE, _seen(job, (), None)) == ["resnet continues with 2 of 4 workers until the drill is over."]


# The pods of hosts.


def test_a_host_whose_pod_is_unknown_is_none_of_an_empty_name() -> None:
    """As where the user may not list pods: a pod mostly has the name of its host."""
    resource = CustomResource(metadata=Metadata(name="job.j", namespace="ns", uid="u", resource_version="1"), spec={})
    record = StoredRecord(resource, running_job(name="ns/job.j"))
    (job,) = status_of([record], [], {}, T0, []).jobs
    assert {host.pod for host in job.host_states} == {None}
    assert pod_of(job, job.host_states[0]) == "ns/n1"
    places = {host: Placement(f"uid-{host}", Host("a"), name=f"{host}-xb2vq") for host in first(6)}
    (job,) = status_of([record], [], {job.job: places}, T0, []).jobs
    assert pod_of(job, job.host_states[0]) == "ns/n1-xb2vq"


def test_the_history_of_a_pod_is_that_of_the_job_whose_host_it_is() -> None:
    """By the same rule as a drill: by the pod's own name, in the job's namespace."""
    job = _job(states=[_host(1, pod="w1-xb2vq")])
    found = []
    for subject in ("ns/w1-xb2vq", "ns/w1", "other/w1-xb2vq", "ns/w2", "other/w2"):
        told = NoticeView(
            id=NoticeId("a"),
            source=Source("api-events"),
            subject=subject,
            kind=SubjectKind.POD,
            state=NoticeState.GONE,
            age_seconds=9.0,
        )
        (entry,) = history_of(_status(job, notices=[told]), Past(), PastQuery())
        found.append((subject, entry.jobs))
    assert [subject for subject, jobs in found if jobs == [job.job]] == ["ns/w1-xb2vq", "ns/w2"]


# What follows.


class _Answers:
    """A backend that gives these answers in turn, and the last one for ever."""

    def __init__(self, *answers: SeenStatus) -> None:
        self._answers = list(answers)

    async def status(self) -> SeenStatus:
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]


async def _followed(before: SeenStatus, *answers: SeenStatus) -> tuple[Mapping[JobName, Sequence[str]], list[str]]:
    """What `--wait` returns, and what it says without the times."""
    said = list[str]()
    history = await steering.follow(cast("Backend", _Answers(*answers)), POD, before, said.append)
    return history, [line.partition(" s  ")[2] for line in said]


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steering, "_POLL_SECONDS", 0)
    monkeypatch.setattr(steering, "_SETTLING_SECONDS", 5)


_HERE = _job(states=[_host(1, pod="w1-xb2vq"), _host(2)])
_GONE: Mapping[str, Any] = {"states": (), "workers": [], "running": False}


async def test_a_job_that_has_lost_the_pod_before_the_first_look_is_followed() -> None:
    """A quick controller has deleted it by then, so that only the status before the drill tells whose it was."""
    stopped = _job(**_GONE, phase="Suspended", reason="Drill: w1 will be reclaimed, says simulated: stopping.")
    resumed = _job(states=[_host(1, pod="w1-zzzzz"), _host(2)], run=2, reason="Drill: Run 2 is running on 4 hosts.")
    history, said = await _followed(_status(_HERE), _status(stopped), _status(resumed))
    assert history == {_HERE.job: ["Suspended", "Running"]}
    assert said == [
        f"{_HERE.job} is Suspended: Drill: w1 will be reclaimed, says simulated: stopping.",
        "The drill is over.",
        f"{_HERE.job} is Running: Drill: Run 2 is running on 4 hosts.",
    ]


async def test_a_job_that_is_forgotten_before_the_first_look_is_missed_aloud() -> None:
    history, said = await _followed(_status(_HERE), _status())
    assert history == {_HERE.job: []}
    assert said == [f"The supervisor no longer knows {_HERE.job}.", "The drill is over."]


async def test_a_job_that_a_person_suspends_meanwhile_is_not_waited_for() -> None:
    held = _job(**_GONE, phase="Suspended", request=_BY_ANN[RequestKind.SUSPEND])
    history, _ = await _followed(_status(_HERE), _status(held))
    assert history == {_HERE.job: ["Suspended"]}


async def test_a_job_that_has_left_a_node_before_the_first_look_is_told() -> None:
    """Also that it was stopped without a checkpoint."""
    answer = AcknowledgementView(run=1, kind="failed", error="a full disk")
    left = _job(**_GONE, phase="Suspended", reason="n1 is drained by ann: stopping.", acknowledgement=answer)
    said = list[str]()
    with pytest.raises(NotNowError, match="could not save: a full disk"):
        await steering._follow_node(cast("Backend", _Answers(_status(left))), NODE, _status(_HERE), 5.0, said.append)
    assert [line.partition(" s  ")[2] for line in said] == [
        f"{left.job} is Suspended: n1 is drained by ann: stopping.",
        "No supervised job uses node n1.",
    ]
