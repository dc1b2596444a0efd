"""An arbitrary object of a tenant is read, observed, planned and stored, or it is refused: no error escapes."""

import json
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from node_agent.pods import classify
from node_agent.pods import read_pod as read_agent_pod
from node_agent.pods import report as report_pod
from supervisor.cluster.events import read_event
from supervisor.cluster.objects import Node, Pod, node_or_outline, pod_or_outline
from supervisor.decide.directives import JobDirectives, order_for
from supervisor.decide.notices import Signal, apply_signal
from supervisor.decide.plan import plan
from supervisor.decide.policy import Policy
from supervisor.decide.situation import JobFacts, Member, Members
from supervisor.domain.ids import Host, cluster_job
from supervisor.domain.job import SupervisedJob
from supervisor.domain.notice import ReclaimNotice
from supervisor.domain.order import Worker
from supervisor.ingest.cluster.signals import (
    drain_signal,
    drill_signal,
    event_signal,
    maintenance_signal,
    node_signal,
    node_subject,
    pod_signal,
    pod_subject,
)
from supervisor.jobs.annotated import with_request
from supervisor.jobs.jobset.kind import JOBSET
from supervisor.jobs.kind import AnyKind, JobState
from supervisor.jobs.pytorchjob.kind import PYTORCHJOB
from supervisor.jobs.queues.kueue.workloads import read_workload
from supervisor.jobs.registry import KINDS, POD_LABELS, RESOURCES, job_of, process_of
from supervisor.jobs.trainingjob.kind import TRAININGJOB, host_lists
from supervisor.jobs.trainingjob.scaleouts import growable
from supervisor.store.codec import NOTICE_CODEC, job_codec, read_job, read_notice
from tests.hostile.hostile_objects import (
    MADE,
    NAMESPACE,
    NOW,
    TEXTS,
    UID,
    OddFaults,
    as_json,
    bent,
    bounded,
    each_odd,
    honest_event,
    honest_job,
    honest_node,
    honest_pod,
    metadata,
)
from tests.testkit.properties import examples
from tests.testkit.schemas import Draft4Validator
from tests.testkit.yaml_text import document

ROOT = Path(__file__).parent.parent.parent
POLICY = Policy()
JOBS = job_codec("home", lambda: NOW, RESOURCES)
LEAD = 120.0
_DECIDED = set[int]()
"""The jobs that were decided without an error, by what is known of them."""
REFUSED = (msgspec.MsgspecError, ValueError)
"""What the client of the API server takes for an object that does not decode."""

kinds = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)


def read_manifest(kind: AnyKind, data: bytes) -> Any:
    """The job, joined with one that its controller has made of it; None if it is refused."""
    try:
        job = kind.decode(data)
    except REFUSED:
        return None
    if kind.dependent is not None:
        made = JOBSET
        return kind.dependent.joined(job, made.decode(as_json(honest_job(made))))
    return job


def read_pods(pods: Iterable[bytes]) -> list[Pod]:
    found = []
    for data in pods:
        try:
            found.append(pod_or_outline(data, POD_LABELS))
        except REFUSED:
            continue
    return found


def goes_through(kind: AnyKind, job: bytes, pods: Iterable[bytes], known: SupervisedJob | None = None) -> None:
    """Takes a job and its pods through everything that the supervisor does with them, but for its actions."""
    read, present = read_manifest(kind, job), read_pods(pods)
    for pod in present:
        process_of(pod), job_of(pod)
    if read is None:
        return
    name = cluster_job(NAMESPACE, kind.name, "resnet")
    state = JobState.of(kind, name, read, present)
    if kind is TRAININGJOB:
        growable(state, namesakes=False)
    if state.job.elsewhere or (observed := kind.observe(state, known, NOW)) is None:
        return
    observed = with_request(observed, read.annotations, NOW)
    assert kind.observe(state, observed, NOW + 1.0) is not None
    is_decided_and_stored(observed, present)


def is_decided_and_stored(job: SupervisedJob, pods: Iterable[Pod] = ()) -> None:
    """Plans for a job with and without notices on its pods, and stores the result and reads it again.

    Decisions are pure, and most odd values are of fields that nobody reads: the same job is decided once.
    """
    signals = [signal for pod in pods if (signal := pod_signal(pod)) is not None]
    if (seen := hash(repr((job, signals)))) in _DECIDED:
        return
    notices = {Host(signal.subject.name.partition("/")[2]): noticed(signal) for signal in signals}
    granted = job.observed.hosts
    members = Members({host: member(number) for number, host in enumerate(sorted(granted)[:100])})
    for facts in (
        JobFacts(granted=granted),
        JobFacts(granted=granted, members=members),
        JobFacts(granted=granted, notices={host: each for host, each in notices.items() if each is not None}),
        JobFacts(),
    ):
        planned = plan(job, facts, NOW, POLICY)
        decided = replace(job, decision=planned.decision)
        is_stored(decided)
        order_for(decided)
        directives = JobDirectives.of(decided, facts.notices, POLICY)
        for host in list(granted)[:2]:
            directives.directive(Worker("p", job.id, 1, host, 0))
    _DECIDED.add(seen)


def member(number: int) -> Member:
    return Member(member=f"m{number}", since=NOW - 100.0, processes=1, address="a:0", round=3)


def is_stored(job: SupervisedJob) -> None:
    spec, status = JOBS.encode(job, None, 1)
    key = JOBS.object_key(job, ())
    where = {"name": key.name, "namespace": key.namespace, "uid": "u", "resourceVersion": "1"}
    data = json.dumps({"metadata": where, "spec": spec, "status": status}).encode()
    assert len(data) < 1_000_000
    assert read_job(data, "home").value is not None


def noticed(signal: Signal | None) -> ReclaimNotice | None:
    """Applies a signal, and stores the notice and reads it again."""
    if signal is None:
        return None
    notice = apply_signal(None, signal, NOW, NOW, POLICY)
    if notice is None:
        return None
    assert apply_signal(notice, signal, NOW + 1.0, NOW + 1.0, POLICY) is not None
    spec, status = NOTICE_CODEC.encode(notice, None, 1)
    where = {"name": NOTICE_CODEC.object_key(notice, ()).name, "uid": "u", "resourceVersion": "1"}
    data = json.dumps({"metadata": where, "spec": spec, "status": status}).encode()
    assert read_notice(data).value is not None
    return notice


@kinds
def test_an_honest_job_goes_through(kind: AnyKind) -> None:
    """The objects that are bent below are supervised as they are, so that the bent ones reach the decisions."""
    job, pods = honest_job(kind), [honest_pod(kind, index) for index in range(4)]
    read, present = read_manifest(kind, as_json(job)), read_pods(as_json(pod) for pod in pods)
    observed = kind.observe(JobState.of(kind, cluster_job(NAMESPACE, kind.name, "resnet"), read, present), None, NOW)
    assert observed is not None
    assert observed.spec.requested_workers >= 4
    assert schema().is_valid(honest_record(kind))
    goes_through(kind, as_json(job), [as_json(pod) for pod in pods])


@kinds
def test_a_job_with_an_odd_value_anywhere_goes_through_or_is_refused(kind: AnyKind) -> None:
    """Each value of the manifest and each of our annotations is replaced by each odd value, one at a time."""
    pods = [as_json(honest_pod(kind, index)) for index in range(4)]
    faults = OddFaults()
    for place, value, job in each_odd(honest_job(kind)):
        with faults.of(place, value):
            goes_through(kind, as_json(job), pods)
    faults.none()


@kinds
@examples(50)
@given(data=st.data())
def test_an_odd_job_with_odd_pods_goes_through_or_is_refused(kind: AnyKind, data: st.DataObject) -> None:
    job = as_json(data.draw(bent(honest_job(kind))))
    pods = [as_json(data.draw(bent(honest_pod(kind, index)))) for index in range(2)]
    with bounded():
        goes_through(kind, job, pods)


def test_a_pod_with_an_odd_value_anywhere_is_classified_or_refused() -> None:
    """By the supervisor, and by the agent of its node."""
    faults = OddFaults()
    for place, value, pod in each_odd(honest_pod(KINDS[-1], 0)):
        with faults.of(place, value):
            classifies_pod(as_json(pod))
    faults.none()


@examples(300)
@given(bent(honest_pod(KINDS[-1], 0)))
def test_an_odd_pod_is_classified_or_refused(pod: dict[str, Any]) -> None:
    with bounded():
        classifies_pod(as_json(pod))


def classifies_pod(data: bytes) -> None:
    for pod in read_pods([data]):
        noticed(pod_signal(pod))
    try:
        seen = read_agent_pod(data)
    except REFUSED:
        return
    report_pod(None, seen, classify(seen), 1.0, NOW)


def test_a_node_with_an_odd_value_anywhere_is_classified_or_refused() -> None:
    faults = OddFaults()
    for place, value, node in each_odd(honest_node()):
        with faults.of(place, value):
            classifies_node(as_json(node))
    faults.none()


@examples(300)
@given(bent(honest_node()))
def test_an_odd_node_is_classified_or_refused(node: dict[str, Any]) -> None:
    with bounded():
        classifies_node(as_json(node))


def classifies_node(data: bytes) -> None:
    try:
        node: Node = node_or_outline(data)
    except REFUSED:
        return
    for signal in (node_signal(node, LEAD), maintenance_signal(node), drain_signal(node)):
        noticed(signal)


def test_an_event_with_an_odd_value_anywhere_is_a_signal_or_refused() -> None:
    faults = OddFaults()
    for place, value, event in each_odd(honest_event()):
        with faults.of(place, value):
            classifies_event(as_json(event))
    faults.none()


@examples(300)
@given(bent(honest_event()))
def test_an_odd_event_is_a_signal_or_refused(event: dict[str, Any]) -> None:
    with bounded():
        classifies_event(as_json(event))


def classifies_event(data: bytes) -> None:
    pod = read_pods([as_json(honest_pod(KINDS[-1], 0))])[0]
    node = node_or_outline(as_json(honest_node()))
    try:
        event = read_event(data)
    except REFUSED:
        return
    for subject in (pod_subject(pod), node_subject(node)):
        noticed(event_signal([(event, LEAD)], subject))
        noticed(drill_signal([event], subject))


def honest_record(kind: AnyKind) -> dict[str, Any]:
    """The SupervisedJob that the supervisor stores of an honest job that runs."""
    pods = read_pods(as_json(honest_pod(kind, index)) for index in range(4))
    state = JobState.of(
        kind, cluster_job(NAMESPACE, kind.name, "resnet"), read_manifest(kind, as_json(honest_job(kind))), pods
    )
    observed = kind.observe(state, None, NOW)
    assert observed is not None
    decided = replace(
        observed, decision=plan(observed, JobFacts(granted=observed.observed.hosts), NOW, POLICY).decision
    )
    spec, status = JOBS.encode(decided, None, 1)
    where = {**metadata("x"), "name": JOBS.object_key(decided, ()).name}
    hosts = sorted(observed.observed.hosts)[:2]
    members = {"members": ["m0", "m1"], "hosts": hosts, "inProcess": False, "starting": [], "since": MADE}
    status["decision"]["round"] = {"number": 3, "run": observed.observed.run, **members}
    return {"metadata": where, "spec": spec, "status": status}


@pytest.mark.parametrize("kind", [TRAININGJOB, PYTORCHJOB], ids=lambda kind: kind.name)
def test_our_own_resource_with_an_odd_value_anywhere_is_planned_or_refused(kind: AnyKind) -> None:
    """A person may edit a SupervisedJob by hand."""
    faults = OddFaults()
    for place, value, record in each_odd(honest_record(kind)):
        with faults.of(place, value):
            plans_record(as_json(record))
    faults.none()


@examples(200)
@given(st.sampled_from(KINDS).flatmap(lambda kind: bent(honest_record(kind))))
def test_our_own_resource_edited_by_hand_is_planned_or_refused(record: dict[str, Any]) -> None:
    with bounded():
        plans_record(as_json(record))


@cache
def schema() -> Any:
    definition = document((ROOT / "charts/elastic-job-supervisor/files/crds/supervisedjobs.yaml").read_text("utf-8"))
    return Draft4Validator(definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"])


def plans_record(data: bytes) -> None:
    """Plans what the API server would store: it refuses what the schema of the definition does not allow."""
    try:
        job = decoded_record(data)
        if job is not None:
            is_decided_and_stored(job)
    except Exception:
        # Only then is the schema asked, which takes longer than all the rest.
        if schema().is_valid(json.loads(data.replace(b"0" * 4900, b""))):
            raise


def decoded_record(data: bytes) -> SupervisedJob | None:
    try:
        return read_job(data, "home").value
    except REFUSED:
        return None


@examples(200)
@given(st.text(max_size=30) | st.sampled_from([f"host:{slots}\n" for slots in TEXTS]), st.integers(0, 8))
def test_an_odd_host_file_is_written_anew(text: str, slots: int) -> None:
    """A ConfigMap belongs to the job's namespace, so its users may edit it."""
    with bounded():
        lists = host_lists({"hostfile": text, "deepspeed-hostfile": text}, [Host("a")], slots)
    assert all(len(each) < 1000 for each in lists.values())


def test_an_odd_workload_is_admitted_or_refused() -> None:
    """A Workload of Kueue, which whoever may create Workloads can write."""
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "resnet", "uid": UID, "controller": True}
    condition = {"type": "Admitted", "status": "True", "reason": "r", "message": "m", "lastTransitionTime": MADE}
    honest = {
        "metadata": metadata("w", {"kueue.x-k8s.io/priority-boost": "1"}, ownerReferences=[owner]),
        "spec": {"active": True, "queueName": "q"},
        "status": {"conditions": [condition, {**condition, "type": "QuotaReserved"}]},
    }
    faults = OddFaults()
    for place, value, workload in each_odd(honest):
        with faults.of(place, value):
            try:
                read = read_workload(as_json(workload))
            except REFUSED:
                continue
            assert isinstance(read.admission.held, str)
            assert isinstance(read.boost, int)
            assert read.job is None or read.job[1] is not None
    faults.none()
