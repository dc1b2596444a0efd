"""Notices and jobs as custom resources: nothing is lost, nothing meets, and the definitions know every field."""

import re
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml  # type: ignore[import-untyped]  # Its stubs would be one more package for one call.
from hypothesis import assume, given
from hypothesis import strategies as st

from servicekit.kubernetes.objects import ObjectKey
from supervisor.decide.plan import plan
from supervisor.decide.situation import View
from supervisor.domain.capability import Capability
from supervisor.domain.ids import Host, JobName, NoticeId, cluster_job
from supervisor.domain.job import (
    Acknowledgement,
    AcknowledgementKind,
    Decision,
    Framework,
    Growth,
    Observed,
    Phase,
    Result,
    Spec,
    Stop,
    SupervisedJob,
)
from supervisor.domain.notice import NoticeState, ReclaimNotice, SubjectKind
from supervisor.store.job_resource import JobResource, job_spec, job_status
from supervisor.store.names import bare_name, job_key, job_name, notice_key
from supervisor.store.notice_resource import NoticeResource, notice_spec, notice_status
from supervisor.store.resources import GROUP
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

HOME = "home"
MICROSECOND = 1e-6
CRDS = Path(__file__).parents[3] / "charts" / "elastic-job-supervisor" / "files" / "crds"

INSTANTS = st.floats(0, 4e9)
MAYBE = st.none() | INSTANTS
COUNTS = st.integers(0, 2**53)
HOSTS = st.frozensets(st.sampled_from([Host(f"n{number}") for number in range(8)]))
NOTICES = st.builds(
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
    ),
)
GROWTHS = st.none() | st.builds(Growth, workers=COUNTS, number=COUNTS, until=INSTANTS, failed=COUNTS)
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
        )
    )
    return decision


JOBS = st.builds(
    SupervisedJob,
    name=st.sampled_from([JobName("job"), JobName("a..b"), cluster_job("team", "trainingjob", "job")]),
    uid=st.just("uid"),
    spec=SPECS,
    observed=OBSERVED,
    decision=decisions(),
)


def body(kind: str, key: ObjectKey, spec: object, status: object) -> dict[str, Any]:
    metadata = {
        "name": key.name,
        "namespace": key.namespace,
        "uid": "uid",
        "resourceVersion": "7",
        "labels": {"a": "b"},
    }
    resource = {"apiVersion": f"{GROUP}/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec, "status": status}
    decoded: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(resource))
    return decoded


def notice_body(value: ReclaimNotice) -> dict[str, Any]:
    key = notice_key(value.id, value.episode)
    return body("ReclaimNotice", key, notice_spec(value), notice_status(value, 1))


def job_body(value: SupervisedJob) -> dict[str, Any]:
    return body("SupervisedJob", job_key(value.name, HOME), job_spec(value, 1), job_status(value, 1, (), T0))


def notice_back(value: ReclaimNotice) -> ReclaimNotice | None:
    return msgspec.json.decode(msgspec.json.encode(notice_body(value)), type=NoticeResource).value()


def job_back(value: SupervisedJob) -> SupervisedJob | None:
    return msgspec.json.decode(msgspec.json.encode(job_body(value)), type=JobResource).value(HOME)


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


@given(NOTICES)
def test_a_notice_comes_back_as_it_was(value: ReclaimNotice) -> None:
    back = notice_back(value)
    assert back is not None
    assert instants(back) == pytest.approx(instants(value), abs=MICROSECOND)
    assert notice_back(back) == back
    times = {"first_seen", "deadline", "ended_at"}
    assert replace(back, **{name: getattr(value, name) for name in times}) == value


@given(JOBS)
def test_a_job_comes_back_as_it_was(value: SupervisedJob) -> None:
    """All three parts, every host in each set that it was in; instants as with notices."""
    back = job_back(value)
    assert back is not None
    assert instants(back) == pytest.approx(instants(value), abs=MICROSECOND)
    assert job_back(back) == back
    assert without_instants(back) == without_instants(value)


@given(INSTANTS, st.floats(0, 10))
def test_a_group_that_is_waited_for_is_decided_once(since: float, later: float) -> None:
    """What comes back from the cluster is what a supervisor works out again, however fine its clock is."""
    view = View(notices=noticed(replace(notice(4), first_seen=since, deadline=None)), since=since)
    decided = plan(running_job(), view, since, POLICY).decision
    back = job_back(replace(running_job(), decision=decided))
    assert back is not None
    assume(decided.window_until is not None and since + later < decided.window_until)
    assert plan(back, view, since + later, POLICY).decision == back.decision


def test_what_was_not_finished_is_no_value() -> None:
    """A notice without its status, and a job whose status is an earlier one's, were never confirmed to anybody."""
    half = notice_body(notice(1)) | {"status": None}
    assert msgspec.convert(half, NoticeResource).value() is None
    later = job_body(replace(running_job(), uid="later")) | {"status": job_body(running_job())["status"]}
    assert msgspec.convert(later, JobResource).value(HOME) is None


def test_four_thousand_workers_stay_below_256_kib() -> None:
    """With names of the length that nodes of large clouds have, in the middle of a shrink."""
    hosts = frozenset(Host(f"cn-hangzhou.i-bp1abcdefghijkl{number:05}.training") for number in range(4000))
    doomed = frozenset(sorted(hosts)[:400])
    job = observing(running_job(workers=0), hosts=hosts - frozenset(sorted(hosts)[400:800]))
    job = replace(job, decision=replace(job.decision, hosts=hosts, exclusions=doomed, reason="x" * 500))
    size = len(msgspec.json.encode(job_body(job)))
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
    resource = msgspec.convert(job_body(job), JobResource)
    assert resource.value("elsewhere") is None
    assert resource.value(HOME) == job


def test_episodes_sources_and_machines_have_resources_of_their_own() -> None:
    ids = [NoticeId("metadata/uid"), NoticeId("metadata/Ünïcode uid"), NoticeId("other/uid")]
    names = {notice_key(key, episode).name for key in ids for episode in (1, 2)}
    assert len(names) == 6
    assert all(re.fullmatch("n-[0-9a-f]{40}", name) for name in names)


def test_a_condition_keeps_its_time_until_it_changes() -> None:
    job = running_job()
    begun = job_status(job, 1, (), T0)
    same = job_status(observing(job, restarts=1), 1, begun.conditions, T0 + 5)
    assert same.conditions == begun.conditions
    suspended = replace(job, decision=replace(job.decision, phase=Phase.SUSPENDED, reason="No room."))
    later = {one.type: one for one in job_status(suspended, 1, begun.conditions, T0 + 9).conditions}
    assert {kind: one.status for kind, one in later.items()} == {
        "Running": "False",
        "Suspended": "True",
        "Finished": "False",
        "Disrupted": "True",
    }
    assert later["Suspended"].last_transition_time.timestamp() == T0 + 9
    assert later["Finished"].last_transition_time.timestamp() == T0
    assert (later["Suspended"].reason, later["Suspended"].message) == ("Suspended", "No room.")


@pytest.mark.parametrize(
    ("changes", "status", "reason", "message"),
    [
        ({}, "False", "Running", "It runs."),
        ({"window_until": T0}, "True", "CollectingGroup", "It runs."),
        ({"exclusions": hosts(2)}, "True", "HostsExcluded", "n2 is left out because of a notice."),
        ({"exclusions": first(6)}, "True", "HostsExcluded", "6 hosts (n1, n2, n3, n4, n5, …) are left out"),
        ({"phase": Phase.STOPPING, "exclusions": hosts(2)}, "True", "Stopping", "It runs."),
        ({"phase": Phase.SUSPENDED}, "True", "Suspended", "It runs."),
        ({"phase": Phase.RESUMING}, "False", "Resuming", "It runs."),
    ],
)
def test_a_condition_says_whether_a_job_is_disrupted(
    changes: dict[str, Any], status: str, reason: str, message: str
) -> None:
    job = running_job()
    told = job_status(replace(job, decision=replace(job.decision, **changes)), 1, (), T0).conditions
    (disrupted,) = [each for each in told if each.type == "Disrupted"]
    assert (disrupted.status, disrupted.reason) == (status, reason)
    assert disrupted.message.startswith(message)


def test_the_condition_of_a_notice_is_a_sentence() -> None:
    (active,) = notice_status(notice(1, left=30), 1).conditions
    assert active.message == "Node n1 will be reclaimed at 2023-11-14T22:13:50Z, says metadata."


def definition(plural: str) -> dict[str, Any]:
    crd = yaml.safe_load((CRDS / f"{plural}.yaml").read_text())
    schema: dict[str, Any] = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


def differences(schema: dict[str, Any], kind: Any, path: str = "") -> list[str]:
    """Where a definition and what the store writes know different fields, or require others."""
    kind = next((one for one in getattr(kind, "__args__", ()) if hasattr(one, "__struct_fields__")), kind)
    if not hasattr(kind, "__struct_fields__"):
        return []
    fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
    fields.pop("metadata", None)
    known, required = schema["properties"], set(schema.get("required", ()))
    found = [f"{path}.{name}" for name in fields.keys() ^ known.keys()]
    found += [f"{path}.{name} required" for name, each in fields.items() if each.required != (name in required)]
    for name, field in fields.items():
        inner = known.get(name, {})
        found += differences(inner.get("items", inner), field.type, f"{path}.{name}")
    return found


@pytest.mark.parametrize(("plural", "resource"), [("reclaimnotices", NoticeResource), ("supervisedjobs", JobResource)])
def test_the_definitions_know_every_field(plural: str, resource: type[msgspec.Struct]) -> None:
    """One that they do not would be refused, and one that nobody writes would stay empty."""
    found = differences(definition(plural), resource)
    optional = [".status.conditions.observedGeneration", ".status.announced", ".status.message"]
    assert [each for each in found if each not in optional] == []


@pytest.mark.parametrize(
    ("plural", "path", "words"),
    [
        ("reclaimnotices", "spec.subject.kind", SubjectKind),
        ("reclaimnotices", "status.state", NoticeState),
        ("supervisedjobs", "spec.framework", Framework),
        ("supervisedjobs", "status.decision.phase", Phase),
        ("supervisedjobs", "status.observed.result", Result),
        ("supervisedjobs", "status.observed.acknowledgement.kind", AcknowledgementKind),
    ],
)
def test_the_definitions_know_every_word(plural: str, path: str, words: type[StrEnum]) -> None:
    schema = definition(plural)
    for name in path.split("."):
        schema = schema["properties"][name]
    assert schema["enum"] == [each.value for each in words]
