"""Notices and jobs as custom resources: nothing is lost, nothing meets, and the definitions know every field."""

import json
import re
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from servicekit.kubernetes.client import Resource
from servicekit.kubernetes.objects import ObjectKey
from supervisor.decide.plan import plan
from supervisor.decide.situation import JobFacts
from supervisor.domain.agreement import Agreement, Purpose, Round
from supervisor.domain.ids import Host, JobName, NoticeId, bare_name, cluster_job
from supervisor.domain.job import (
    ELASTIC,
    Acknowledgement,
    AcknowledgementKind,
    Capability,
    CheckpointRequest,
    Decision,
    Framework,
    GangMinimum,
    Growth,
    HubMarks,
    Observed,
    OnLoss,
    Phase,
    RequestKind,
    Result,
    Spec,
    Stop,
    SupervisedJob,
    UserRequest,
    with_end,
)
from supervisor.domain.notice import NoticeClass, NoticeState, ReclaimNotice, SubjectKind
from supervisor.jobs.registry import RESOURCES
from supervisor.store.codec import (
    JOBS,
    NOTICE_CODEC,
    NOTICES,
    Codec,
    StoredRecord,
    job_codec,
    job_key,
    job_name,
    notice_key,
    read_job,
    read_notice,
)
from supervisor.store.conditions import ResourceCondition, job_conditions, notice_condition
from supervisor.store.sqlite import SqliteStore
from tests.supervisor.decide.decide_builders import (
    POLICY,
    T0,
    first,
    hosts,
    notice,
    noticed,
    observing,
    running_job,
    waiting_job,
)
from tests.supervisor.store.store_behaviour import opened, put_job
from tests.testkit.yaml_text import document

T = TypeVar("T")

HOME = "home"
MICROSECOND = 1e-6
PRESENT = Path(__file__).parent / "present"
CRDS = Path(__file__).parents[3] / "charts" / "elastic-job-supervisor" / "files" / "crds"

INSTANTS = st.floats(0, 4e9)
MAYBE = st.none() | INSTANTS
COUNTS = st.integers(0, 2**53)
HOSTS = st.frozensets(st.sampled_from([Host(f"n{number}") for number in range(8)]))
ANNOUNCED = st.builds(
    replace,
    st.just(notice(1)),
    state=st.sampled_from(NoticeState),
    first_seen=INSTANTS,
    deadline=MAYBE,
    ended_at=MAYBE,
    announced=st.text(max_size=20),
    message=st.text(max_size=20),
    session=COUNTS,
    revision=COUNTS,
    notice_class=st.sampled_from(NoticeClass),
    cancellable=st.booleans(),
)
SPECS = st.builds(
    Spec,
    framework=st.sampled_from(Framework),
    min_workers=COUNTS,
    max_workers=COUNTS,
    requested_workers=COUNTS,
    max_wait_seconds=INSTANTS,
    launcher_host=st.none() | st.just(Host("n9")),
    capabilities=st.frozensets(st.sampled_from(Capability)),
    least_to_start=st.none() | COUNTS,
    on_loss=st.sampled_from(OnLoss),
    worker_multiple=COUNTS,
    ignored=st.lists(st.text(), max_size=2).map(tuple),
    refused=st.booleans(),
    gang=st.none() | st.builds(GangMinimum, workers=COUNTS, pods=COUNTS, source=st.text(), group=st.text()),
)
REQUESTS = st.none() | st.builds(
    UserRequest, kind=st.sampled_from(RequestKind), by=st.text(), reason=st.text(), at=INSTANTS
)
OBSERVED = st.builds(
    Observed,
    launcher=st.text(),
    instance=st.text(),
    registered_at=INSTANTS,
    hosts=HOSTS,
    run=COUNTS,
    running=st.booleans(),
    exit_code=st.none() | st.integers(-64, 255),
    ending=st.booleans(),
    launcher_lost_since=st.none() | INSTANTS,
    result=st.none() | st.sampled_from(Result),
    acknowledgement=st.none()
    | st.builds(
        Acknowledgement,
        run=COUNTS,
        generation=COUNTS,
        kind=st.sampled_from(AcknowledgementKind),
        step=st.none() | COUNTS,
        at=INSTANTS,
        rank=COUNTS,
        error=st.text(),
        has_left=st.booleans(),
        resumes_from=st.none() | COUNTS,
    ),
    request=REQUESTS,
    queue=st.text(),
    ended_at=st.none() | INSTANTS,
    hub=st.none() | st.builds(HubMarks, given_up=st.booleans(), checkpoint=st.text(), moved=st.booleans()),
)
GROWTHS = st.none() | st.builds(Growth, workers=COUNTS, number=COUNTS, until=INSTANTS, failed=COUNTS)
CHECKPOINTS = st.none() | st.builds(CheckpointRequest, run=COUNTS, generation=COUNTS, since=INSTANTS)


@st.composite
def rounds(draw: st.DrawFn) -> Round:
    size = draw(st.integers(1, 3))
    return Round(
        number=draw(COUNTS),
        run=draw(COUNTS),
        members=tuple(draw(st.lists(st.text(), min_size=size, max_size=size))),
        hosts=tuple(Host(f"n{number}") for number in range(size)),
        in_process=draw(st.booleans()),
        starting=tuple(draw(st.lists(st.just(Host("n9")), max_size=2))),
        since=draw(INSTANTS),
    )


ROUNDS = st.none() | rounds()
AGREEMENTS = st.none() | st.builds(
    Agreement,
    epoch=COUNTS,
    purpose=st.sampled_from(Purpose),
    run=COUNTS,
    step=st.none() | COUNTS,
    committed=st.booleans(),
    since=INSTANTS,
    began=INSTANTS,
    following=ROUNDS,
)
STOPS = st.none() | st.builds(Stop, run=COUNTS, generation=COUNTS, since=INSTANTS, everyone=st.booleans())


@st.composite
def decisions(draw: st.DrawFn) -> Decision:
    hosts = draw(HOSTS)
    decision: Decision = draw(
        st.builds(
            Decision,
            generation=COUNTS,
            phase=st.sampled_from(Phase),
            reason=st.text(),
            run=COUNTS,
            hosts=st.just(hosts),
            exclusions=HOSTS.map(hosts.intersection),
            excluded_at=COUNTS,
            window_until=MAYBE,
            below_min_since=MAYBE,
            waiting_since=MAYBE,
            capacity_since=MAYBE,
            resume_until=MAYBE,
            failed_resumes=COUNTS,
            not_before=MAYBE,
            stop=STOPS,
            growth=GROWTHS,
            checkpoint=CHECKPOINTS,
            agreement=AGREEMENTS,
            epochs=COUNTS,
            round=ROUNDS,
            run_since=MAYBE,
            short_runs=COUNTS,
            held_up=st.booleans(),
            request=REQUESTS,
            resumes_from=st.none() | COUNTS,
            given_up_since=MAYBE,
        )
    )
    return decision


VALUES = st.builds(
    SupervisedJob,
    name=st.sampled_from([JobName("job"), JobName("a..b"), cluster_job("team", "trainingjob", "job")]),
    uid=st.just("uid"),
    spec=SPECS,
    observed=OBSERVED,
    decision=decisions(),
).map(lambda job: with_end(job, T0))


JOB_CODEC = job_codec(HOME, lambda: T0, RESOURCES)


def body(codec: Codec[Any, T], value: T) -> dict[str, Any]:
    key = codec.object_key(value, ())
    metadata = {
        "name": key.name,
        "namespace": key.namespace,
        "uid": "uid",
        "resourceVersion": "7",
        "labels": {"a": "b"},
    }
    spec, status = codec.encode(value, None, 1)
    decoded: dict[str, Any] = msgspec.json.decode(
        msgspec.json.encode({"metadata": metadata, "spec": spec, "status": status})
    )
    return decoded


def record(codec: Codec[Any, T], resource: dict[str, Any]) -> StoredRecord[T]:
    data = msgspec.json.encode(resource)
    read: StoredRecord[Any] = read_notice(data) if codec is NOTICE_CODEC else read_job(data, HOME)
    return read


def notice_back(value: ReclaimNotice) -> ReclaimNotice | None:
    return record(NOTICE_CODEC, body(NOTICE_CODEC, value)).value


def job_back(value: SupervisedJob) -> SupervisedJob | None:
    return record(JOB_CODEC, body(JOB_CODEC, value)).value


def instants(value: object) -> dict[str, float]:
    flat: dict[str, float] = {}

    def walk(path: str, part: object) -> None:
        match part:
            case dict():
                for name, inner in part.items():
                    walk(f"{path}.{name}", inner)
            case float():
                flat[path] = part

    walk("", msgspec.to_builtins(value))
    return flat


def without_instants(value: object) -> object:
    def blanked(part: object) -> object:
        match part:
            case dict():
                return {name: blanked(inner) for name, inner in part.items()}
            case float():
                return None
        return part

    return blanked(msgspec.to_builtins(value, order="deterministic"))


@given(ANNOUNCED)
def test_a_notice_comes_back_as_it_was(value: ReclaimNotice) -> None:
    back = notice_back(value)
    assert back is not None
    assert instants(back) == pytest.approx(instants(value), abs=MICROSECOND)
    assert notice_back(back) == back
    times = {"first_seen", "deadline", "ended_at"}
    assert replace(back, **{name: getattr(value, name) for name in times}) == value


@given(VALUES)
def test_a_job_comes_back_as_it_was(value: SupervisedJob) -> None:
    """All three parts, every host in each set that it was in; instants as with notices."""
    back = job_back(value)
    assert back is not None
    assert instants(back) == pytest.approx(instants(value), abs=MICROSECOND)
    assert job_back(back) == back
    assert without_instants(back) == without_instants(value)


@pytest.mark.parametrize(("codec", "value"), [(NOTICE_CODEC, notice(1)), (JOB_CODEC, running_job())])
def test_what_is_read_is_what_would_be_written(codec: Codec[Any, Any], value: Any) -> None:
    """So that a part that stays the same takes no request."""
    resource = body(codec, value)
    assert codec.encode(value, record(codec, resource), 1) == (resource["spec"], resource["status"])


@given(INSTANTS, st.floats(0, 10))
def test_a_group_that_is_waited_for_is_decided_once(since: float, later: float) -> None:
    """What comes back from the cluster is what a supervisor works out again, however fine its clock is."""
    view = JobFacts(notices=noticed(replace(notice(4), first_seen=since, deadline=None)), since=since)
    decided = plan(running_job(), view, since, POLICY).decision
    back = job_back(replace(running_job(), decision=decided))
    assert back is not None
    assume(decided.window_until is not None and since + later < decided.window_until)
    assert plan(back, view, since + later, POLICY).decision == back.decision


def test_what_was_not_finished_is_no_value() -> None:
    """A notice without its status, and a job whose status is an earlier one's, were never confirmed to anybody."""
    half = body(NOTICE_CODEC, notice(1)) | {"status": None}
    assert record(NOTICE_CODEC, half).value is None
    status = body(JOB_CODEC, running_job())["status"]
    later = body(JOB_CODEC, replace(running_job(), uid="later")) | {"status": status}
    assert record(JOB_CODEC, later).value is None


@pytest.mark.parametrize(
    "changed",
    [
        {"members": ["a"], "hosts": ["n1", "n2"]},
        {"members": ["a", "b"], "hosts": ["n1"]},
        {"members": ["a", "b"], "hosts": ["n1", "n1"]},
        {"members": [], "hosts": []},
    ],
)
def test_a_round_that_a_person_has_broken_is_dropped(changed: dict[str, Any]) -> None:
    """Each member has one host, else nobody could follow the round; the rest of the job is read."""
    resource = body(JOB_CODEC, FULL_JOB)
    resource["status"]["decision"]["round"] |= changed
    read = record(JOB_CODEC, resource).value
    assert read == replace(FULL_JOB, decision=replace(FULL_JOB.decision, round=None))


def test_an_instant_that_a_person_has_moved_beyond_time_is_written_again() -> None:
    """Its offset makes it later than the last instant that can be written."""
    resource = body(JOB_CODEC, FULL_JOB)
    resource["status"]["decision"]["windowUntil"] = "9999-12-31T23:59:59-12:00"
    read = record(JOB_CODEC, resource).value
    assert read is not None
    assert body(JOB_CODEC, read)["status"]["decision"]["windowUntil"] == "9000-01-01T00:00:00Z"


def test_four_thousand_workers_stay_below_256_kib() -> None:
    """With names of the length that nodes of large clouds have, in the middle of a shrink."""
    hosts = frozenset(Host(f"cn-hangzhou.i-bp1abcdefghijkl{number:05}.training") for number in range(4000))
    doomed = frozenset(sorted(hosts)[:400])
    job = observing(running_job(workers=0), hosts=hosts - frozenset(sorted(hosts)[400:800]))
    job = replace(job, decision=replace(job.decision, hosts=hosts, exclusions=doomed, reason="x" * 500))
    size = len(msgspec.json.encode(body(JOB_CODEC, job)))
    assert size < 256 * 1024 - 16 * 1024, "the rest is for what the API server and other people add"
    assert job_back(job) == job


def test_jobs_of_one_name_in_two_namespaces_do_not_meet() -> None:
    names = [
        cluster_job("team-a", "trainingjob", "resnet"),
        cluster_job("team-b", "trainingjob", "resnet"),
        cluster_job("team-a", "pytorchjob", "resnet"),
        cluster_job(HOME, "trainingjob", "resnet"),
        JobName("resnet"),
        JobName("trainingjob.resnet"),
        JobName("standalone.resnet"),
    ]
    keys = [job_key(name, HOME) for name in names]
    assert len(set(keys)) == len(names)
    assert keys[0] == ObjectKey("team-a", "trainingjob.resnet")
    assert keys[4] == ObjectKey(HOME, "standalone.resnet")
    assert [job_name(key, bare_name(name), HOME) for key, name in zip(keys, names, strict=True)] == names


@pytest.mark.parametrize("length", [210, 242, 243, 253])
@pytest.mark.parametrize("end", ["a", "-", "."])
def test_a_clusters_job_may_have_any_name_that_the_api_server_takes(length: int, end: str) -> None:
    """Its kind stands before it in the name of its resource, which has the same limit. Shorter names stay readable."""
    bare = "a" * 150 + end * 50 + "b" * (length - 200)
    for kind in RESOURCES:
        name, other = cluster_job("team", kind, bare), cluster_job("team", kind, bare[:-1] + "c")
        key = job_key(name, HOME)
        assert len(key.name) <= 253
        assert (key.name == f"{kind}.{bare}") is (len(kind) + 1 + length <= 253)
        assert re.fullmatch(r"[a-z0-9](.*[a-z0-9])?", key.name)
        assert job_name(key, bare, HOME) == name
        assert job_key(other, HOME) != key
        assert len(key.name) < 253 or kind in key.name


def test_a_shortened_name_is_not_believed_of_another_job() -> None:
    """Whoever edits a resource could otherwise speak for a job that is not his."""
    key = job_key(cluster_job("team", "trainingjob", "a" * 253), HOME)
    assert job_name(key, "a" * 252, HOME) is None


@given(st.from_regex(r"\A[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?\Z"))
def test_every_name_that_can_be_registered_has_a_resource(name: str) -> None:
    """Also those that no resource could be called, and it leads back to the name."""
    key = job_key(JobName(name), HOME)
    label = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
    assert re.fullmatch(rf"{label}(\.{label})*", key.name)
    assert len(key.name) <= 253
    assert job_name(key, name, HOME) == name


def test_another_supervisors_stand_alone_jobs_are_left_alone() -> None:
    job = waiting_job(name="resnet")
    resource = msgspec.json.encode(body(JOB_CODEC, job))
    assert read_job(resource, "elsewhere").value is None
    assert not read_job(resource, "elsewhere").ours
    assert read_job(resource, HOME).value == read_job(resource).value == job


def test_episodes_sources_and_machines_have_resources_of_their_own() -> None:
    ids = [NoticeId("metadata/uid"), NoticeId("metadata/Ünïcode uid"), NoticeId("other/uid")]
    names = {notice_key(key, episode).name for key in ids for episode in (1, 2)}
    assert len(names) == 6
    assert all(re.fullmatch("n-[0-9a-f]{40}", name) for name in names)


def conditions(
    job: SupervisedJob, before: Iterable[ResourceCondition] = (), now: float = T0
) -> dict[str, ResourceCondition]:
    return {each.type: each for each in job_conditions(job, before, now)}


def test_a_condition_keeps_its_time_until_it_changes() -> None:
    job = running_job()
    begun = conditions(job)
    assert conditions(job, begun.values(), T0 + 5) == begun
    suspended = replace(job, decision=replace(job.decision, phase=Phase.SUSPENDED, reason="No room."))
    later = conditions(suspended, begun.values(), T0 + 9)
    assert {kind: one.status for kind, one in later.items()} == {
        "Running": "False",
        "Suspended": "True",
        "Finished": "False",
        "Held": "False",
        "Disrupted": "True",
    }
    assert later["Suspended"].last_transition_time == T0 + 9
    assert later["Finished"].last_transition_time == T0
    assert (later["Suspended"].reason, later["Suspended"].message) == ("Suspended", "No room.")


def test_a_later_job_of_the_same_name_has_conditions_of_its_own() -> None:
    before = record(JOB_CODEC, body(JOB_CODEC, running_job()))
    later = job_codec(HOME, lambda: T0 + 9, RESOURCES)
    for uid, since in ((running_job().uid, "2023-11-14T22:13:20Z"), ("later", "2023-11-14T22:13:29Z")):
        _, status = later.encode(replace(running_job(), uid=uid), before, 1)
        assert {each["lastTransitionTime"] for each in status["conditions"]} == {since}


@pytest.mark.parametrize(
    ("changes", "status", "reason", "message"),
    [
        ({}, "False", "Running", "It runs."),
        ({"window_until": T0}, "True", "CollectingGroup", "It runs."),
        ({"exclusions": hosts(2)}, "True", "HostsExcluded", "n2 is excluded because of a notice."),
        ({"exclusions": first(6)}, "True", "HostsExcluded", "6 hosts (n1, n2, n3, n4, n5, …) are excluded"),
        ({"phase": Phase.STOPPING, "exclusions": hosts(2)}, "True", "Stopping", "It runs."),
        ({"phase": Phase.SUSPENDED}, "True", "Suspended", "It runs."),
        ({"phase": Phase.RESUMING}, "False", "Resuming", "It runs."),
    ],
)
def test_a_condition_says_whether_a_job_is_disrupted(
    changes: dict[str, Any], status: str, reason: str, message: str
) -> None:
    job = running_job()
    disrupted = conditions(replace(job, decision=replace(job.decision, **changes)))["Disrupted"]
    assert (disrupted.status, disrupted.reason) == (status, reason)
    assert disrupted.message.startswith(message)


@pytest.mark.parametrize(
    ("kind", "phase", "held", "disrupted"),
    [
        (RequestKind.SUSPEND, Phase.SUSPENDED, ("True", "Requested"), "False"),
        (RequestKind.SUSPEND, Phase.STOPPING, ("False", "Stopping"), "False"),
        (RequestKind.STOP, Phase.SUSPENDED, ("True", "Requested"), "False"),
        (None, Phase.SUSPENDED, ("False", "Suspended"), "True"),
    ],
)
def test_a_condition_says_whether_a_person_holds_a_job(
    kind: RequestKind | None, phase: Phase, held: tuple[str, str], disrupted: str
) -> None:
    """`kubectl wait` tells a job that waits for a person from one that waits for capacity."""
    request = None if kind is None else UserRequest(kind=kind, by="ann", at=T0)
    job = observing(running_job(), request=request)
    found = conditions(replace(job, decision=replace(job.decision, phase=phase)))
    assert (found["Held"].status, found["Held"].reason) == held
    assert found["Disrupted"].status == disrupted


def test_the_condition_of_a_notice_is_a_sentence() -> None:
    message = notice_condition(notice(1, left=30)).message
    assert message == "Node n1 will be reclaimed at 2023-11-14T22:13:50Z, says metadata."


def definition(plural: str) -> dict[str, Any]:
    crd = document((CRDS / f"{plural}.yaml").read_text())
    schema: dict[str, Any] = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


def leaves(schema: dict[str, Any], path: str = "") -> dict[str, dict[str, Any]]:
    """Every field of a definition that holds no further fields, by its path."""
    inner = schema.get("items", schema).get("properties")
    if inner is None:
        return {path: schema}
    return {name: leaf for key, each in inner.items() for name, leaf in leaves(each, f"{path}.{key}").items()}


def written(value: object, path: str = "") -> dict[str, object]:
    match value:
        case dict():
            return {name: leaf for key, each in value.items() for name, leaf in written(each, f"{path}.{key}").items()}
        case [dict(), *_]:
            return {name: leaf for each in value for name, leaf in written(each, path).items()}
    return {path: value}


def missing(schema: dict[str, Any], value: Any, path: str = "") -> Iterator[str]:
    """The fields that a definition requires and a value has not."""
    if isinstance(value, list):
        for each in value:
            yield from missing(schema["items"], each, path)
    elif isinstance(value, dict):
        yield from (f"{path}.{name}" for name in schema.get("required", ()) if name not in value)
        for name, each in value.items():
            yield from missing(schema.get("properties", {}).get(name, {}), each, f"{path}.{name}")


def without_optional(schema: dict[str, Any], value: Any) -> Any:
    """What is left of a value without the fields that a definition does not require."""
    if not isinstance(value, dict):
        return value
    return {name: without_optional(schema["properties"][name], value[name]) for name in schema.get("required", ())}


FULL_NOTICE = replace(notice(1, left=30), announced="soon", message="why", ended_at=T0)
FULL_ROUND = Round(number=1, run=1, members=("m",), hosts=(Host("n1"),), starting=(Host("n2"),), since=T0)
FULL_JOB = replace(
    running_job(),
    spec=replace(
        running_job().spec,
        launcher_host=Host("n9"),
        least_to_start=1,
        capabilities=ELASTIC,
        on_loss=OnLoss.HOLD,
        worker_multiple=2,
        ignored=("worker-multiple is ignored.",),
        refused=True,
        gang=GangMinimum(workers=3, pods=4, source="PodGroup job (scheduling.volcano.sh)", group="job"),
    ),
    observed=replace(
        running_job().observed,
        exit_code=1,
        launcher_lost_since=T0,
        result=Result.FAILED,
        acknowledgement=Acknowledgement(
            run=1,
            generation=1,
            kind=AcknowledgementKind.FAILED,
            step=1,
            at=T0,
            rank=1,
            error="a full disk",
            has_left=True,
            resumes_from=0,
        ),
        request=UserRequest(kind=RequestKind.SUSPEND, by="ann", reason="power cut", at=T0),
        queue="The job waits in the queue gpus of Kueue.",
        ended_at=T0,
        hub=HubMarks(given_up=True, checkpoint="1", moved=True),
    ),
    decision=replace(
        running_job().decision,
        window_until=T0,
        below_min_since=T0,
        waiting_since=T0,
        capacity_since=T0,
        resume_until=T0,
        not_before=T0,
        stop=Stop(run=1, generation=1, since=T0),
        growth=Growth(workers=1, number=1, until=T0),
        checkpoint=CheckpointRequest(run=1, generation=1, since=T0),
        agreement=Agreement(epoch=1, purpose=Purpose.STOP, run=1, step=1, since=T0, began=T0, following=FULL_ROUND),
        epochs=1,
        round=FULL_ROUND,
        run_since=T0,
        short_runs=1,
        held_up=True,
        request=UserRequest(kind=RequestKind.SUSPEND, by="ann", reason="power cut", at=T0),
        resumes_from=1,
        given_up_since=T0,
    ),
)


@pytest.mark.parametrize(
    ("kind", "codec", "full"),
    [(NOTICES, NOTICE_CODEC, FULL_NOTICE), (JOBS, JOB_CODEC, FULL_JOB)],
    ids=["notice", "job"],
)
def test_the_definitions_know_every_field(kind: Resource, codec: Codec[Any, Any], full: Any) -> None:
    """One that they do not would be refused, and one that nobody writes would stay empty."""
    schema, values = definition(kind.plural), written(body(codec, full) | {"metadata": {}})
    unwritten = {".metadata", ".status.conditions.observedGeneration"}
    assert leaves(schema).keys() ^ values.keys() <= unwritten
    instants = {path for path, leaf in leaves(schema).items() if leaf.get("format") == "date-time"}
    assert {path for path, value in values.items() if re.match(r"2023-11-14T.*Z", str(value))} == instants


@pytest.mark.parametrize(
    ("kind", "codec", "value"),
    [
        (NOTICES, NOTICE_CODEC, notice(1, left=None)),
        (JOBS, JOB_CODEC, waiting_job()),
        (JOBS, JOB_CODEC, FULL_JOB),
    ],
    ids=["notice", "waiting-job", "full-job"],
)
def test_what_the_definitions_require_is_written_and_enough_to_read(
    kind: Resource, codec: Codec[Any, Any], value: Any
) -> None:
    schema, resource = definition(kind.plural), body(codec, value)
    assert list(missing(schema, resource)) == []
    parts = {name: without_optional(schema["properties"][name], resource[name]) for name in ("spec", "status")}
    read = record(codec, {**resource, **parts}).value
    assert read is not None
    assert codec.id(read) == codec.id(value)


@pytest.mark.parametrize(
    ("plural", "path", "words"),
    [
        ("reclaimnotices", "spec.subject.kind", SubjectKind),
        ("reclaimnotices", "status.state", NoticeState),
        ("reclaimnotices", "status.noticeClass", NoticeClass),
        ("supervisedjobs", "spec.framework", Framework),
        ("supervisedjobs", "status.decision.phase", Phase),
        ("supervisedjobs", "status.observed.result", Result),
        ("supervisedjobs", "status.decision.agreement.purpose", Purpose),
        ("supervisedjobs", "status.observed.acknowledgement.kind", AcknowledgementKind),
        ("supervisedjobs", "status.observed.request.kind", RequestKind),
    ],
)
def test_the_definitions_know_every_word(plural: str, path: str, words: type[StrEnum]) -> None:
    schema = definition(plural)
    for name in path.split("."):
        schema = schema["properties"][name]
    assert schema["enum"] == [each.value for each in words]


@pytest.mark.parametrize(("codec", "full"), [(NOTICE_CODEC, FULL_NOTICE), (JOB_CODEC, FULL_JOB)], ids=["notice", "job"])
async def test_the_stored_form_is_the_one_that_was_stored_before(
    codec: Codec[Any, Any], full: Any, tmp_path: Path
) -> None:
    """Byte by byte, in both stores. Whoever changes a file in `present` makes a migration, see CONTRIBUTING."""
    kind = "notice" if isinstance(full, ReclaimNotice) else "job"
    present = json.loads((PRESENT / f"{kind}.json").read_text("utf-8"))
    spec, status = codec.encode(full, None, 3)
    assert json.dumps([spec, status]) == json.dumps([present["resource"]["spec"], present["resource"]["status"]])
    assert record(codec, present["resource"]).value == full
    assert codec.object_key(full, ()).name == present["resource"]["metadata"]["name"]
    async with opened(lambda: SqliteStore.open(tmp_path / "store")) as store:
        if isinstance(full, ReclaimNotice):
            await store.put_notice(full.id, lambda _: full)
        else:
            await put_job(store, full)
    with closing(sqlite3.connect(tmp_path / "store")) as connection:
        rows = [list(row) for row in connection.execute(f"SELECT * FROM {kind}s")]  # noqa: S608 - constants
        assert rows == [[each.encode() if str(each).startswith("{") else each for each in present["row"]]]
    async with opened(lambda: SqliteStore.open(tmp_path / "store")) as store:
        assert [*store.snapshot().notices.values(), *store.snapshot().jobs.values()] == [full]
