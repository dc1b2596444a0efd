"""What gang schedulers are asked for becomes the smallest size of a job, of every kind and in hosts."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from servicekit.bounds import MAX_COUNT
from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.kubernetes.access import Access
from servicekit.kubernetes.server import ApiServer
from supervisor.cluster.gangs import FORMS, PodGroup, PodGroupForm, PodGroups, gang_of, read_pod_group
from supervisor.cluster.objects import read_pod
from supervisor.decide.reasons import gang_sentence
from supervisor.domain.ids import cluster_job
from supervisor.domain.job import Framework, GangMinimum, Spec, SupervisedJob
from supervisor.jobs.gangs import with_gang
from supervisor.jobs.kind import JobState
from tests.supervisor.decide.decide_builders import T0
from tests.supervisor.jobs.every_kind import BY_NAME, OPTED_IN, PREFIX, SIZED, manifest, spec_of

VOLCANO, COSCHEDULING, KOORDINATOR, KUBERNETES_1_36, KUBERNETES_1_37 = FORMS
LEAST = f"{PREFIX}min-workers"
ELASTIC = {**OPTED_IN, LEAST: "1"}


def pod_group(
    least: object, name: str = "bert", *, owner: str = "", form: PodGroupForm = VOLCANO, version: int = 7
) -> PodGroup:
    """A PodGroup in the job's namespace, which the object of that uid owns."""
    owners = [{"kind": "Job", "name": "bert", "uid": owner}] if owner else []
    spec: object = least
    for each in reversed(form.path):
        spec = {each: spec}
    metadata = {"name": name, "namespace": "team", "uid": f"{name}-uid", "resourceVersion": str(version)}
    body = {"metadata": {**metadata, "ownerReferences": owners}, "spec": spec}
    return read_pod_group(msgspec.json.encode(body), form)


def elastic(kind: str, size: int = 4, **more: Any) -> dict[str, Any]:
    """The spec of a job that goes on with one worker; `more` is merged into its template of workers."""
    spec: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(spec_of(kind, size)))
    if kind == "trainingjob":
        spec["etReplicaSpecs"]["worker"]["minReplicas"] = 1
    if kind == "pytorchjob":
        spec["elasticPolicy"]["minReplicas"] = 1
    if kind == "mpijob":
        found = {"command": ["horovodrun --host-discovery-script /etc/mpi/discover_hosts.sh python train.py"]}
        spec["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0] |= found
    template_of(kind, spec).setdefault("metadata", {}).update(more)
    return spec


def template_of(kind: str, spec: dict[str, Any], role: str = "Worker") -> dict[str, Any]:
    """The template of a role in a spec."""
    found: dict[str, Any]
    match kind:
        case "jobset":
            found = spec["replicatedJobs"][0]["template"]["spec"]
        case "vcjob":
            found = spec["tasks"][0]
        case "batchjob":
            found = spec
        case _:
            field = next(name for name in spec if name.endswith("ReplicaSpecs"))
            found = next(each for name, each in spec[field].items() if name.lower() == role.lower())
    template: dict[str, Any] = found["template"]
    return template


def job(
    kind: str,
    spec: Mapping[str, Any],
    *groups: PodGroup,
    known: SupervisedJob | None = None,
    pods: Sequence[Any] = (),
    annotations: Mapping[str, str] = ELASTIC,
) -> SupervisedJob:
    """A job with these PodGroups, as it is stored."""
    how = BY_NAME[kind]
    state = JobState.of(how, cluster_job("team", kind, "bert"), how.decode(manifest(spec, annotations, {})), pods)
    observed = how.observe(replace(state, groups=groups), known, T0)
    assert observed is not None
    return observed


def least(*args: Any, **parts: Any) -> int:
    return job(*args, **parts).spec.min_workers


RESIZED = [kind for kind in SIZED if kind != "jobset"]


@pytest.mark.parametrize("kind", RESIZED)
def test_a_job_needs_the_hosts_of_its_podgroup_and_no_fewer_than_it_says_itself(kind: str) -> None:
    """A PodGroup that a person has made."""
    assert least(kind, elastic(kind)) == 1
    assert least(kind, elastic(kind), pod_group(3)) == 3
    assert least(kind, elastic(kind), pod_group(2, "a"), pod_group(3, "b")) == 3
    assert least(kind, elastic(kind), pod_group(0)) == 1
    rigid = {**spec_of(kind, 4), "minAvailable": 4}
    assert least(kind, rigid, pod_group(2), annotations=OPTED_IN) == 4


def test_a_job_of_one_size_keeps_it() -> None:
    assert least("jobset", elastic("jobset"), pod_group(2)) == 4


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.resource.api_version)
def test_each_api_of_podgroups_is_read(form: PodGroupForm) -> None:
    value = job("pytorchjob", elastic("pytorchjob"), pod_group(3, form=form))
    source = f"PodGroup bert ({form.resource.group})"
    assert value.spec.gang == GangMinimum(workers=3, pods=3, source=source, group="bert")
    assert gang_sentence(value.spec) == f"{source} demands 3 pods at a time, so the job needs at least 3 hosts."


@pytest.mark.parametrize(
    ("part", "name"),
    [
        ("annotations", "scheduling.k8s.io/group-name"),
        ("annotations", "scheduling.volcano.sh/group-name"),
        ("labels", "scheduling.x-k8s.io/pod-group"),
        ("labels", "pod-group.scheduling.sigs.k8s.io"),
        ("labels", "pod-group.scheduling.sigs.k8s.io/name"),
        ("annotations", "gang.scheduling.koordinator.sh/name"),
    ],
)
@pytest.mark.parametrize("kind", RESIZED)
def test_pods_and_templates_name_their_podgroup(kind: str, part: str, name: str) -> None:
    how = BY_NAME[kind]
    marks: dict[str, Any] = {part: {name: "others"}}
    decoded = how.decode(manifest(elastic(kind, **marks), ELASTIC, {}))
    assert JobState.of(how, cluster_job("team", kind, "bert"), decoded, []).gangs == {"others"}
    metadata = {"name": "p", "namespace": "team", "uid": "p", "resourceVersion": "1", **marks}
    pod = read_pod(msgspec.json.encode({"metadata": metadata, "spec": {"containers": []}}), how.pod_labels)
    plain = how.decode(manifest(elastic(kind), ELASTIC, {}))
    assert JobState.of(how, cluster_job("team", kind, "bert"), plain, [pod]).gangs == {"others"}


def test_kubernetes_names_the_podgroup_in_the_spec_of_pods() -> None:
    spec = elastic("batchjob")
    spec["template"]["spec"]["schedulingGroup"] = {"podGroupName": "others"}
    decoded = BY_NAME["batchjob"].decode(manifest(spec, ELASTIC, {}))
    assert decoded.spec.gangs["Pod"].group == "others"
    assert least("batchjob", spec, pod_group(3, "others", form=KUBERNETES_1_37)) == 3


@pytest.mark.parametrize(
    "marks",
    [
        {
            "annotations": {
                "gang.scheduling.koordinator.sh/name": "g",
                "gang.scheduling.koordinator.sh/min-available": "3",
            }
        },
        {
            "labels": {
                "pod-group.scheduling.sigs.k8s.io/name": "g",
                "pod-group.scheduling.sigs.k8s.io/min-available": "3",
            }
        },
    ],
    ids=["koordinator", "ack"],
)
@pytest.mark.parametrize("kind", RESIZED)
def test_templates_give_the_minimum_of_a_gang_without_a_podgroup(kind: str, marks: dict[str, Any]) -> None:
    value = job(kind, elastic(kind, **marks))
    assert value.spec.min_workers == 3
    assert "min-available of its pods demands 3 pods" in gang_sentence(value.spec)


@pytest.mark.parametrize("number", ["-1", "three", "", "9" * 40, str(MAX_COUNT + 1)])
def test_a_number_that_is_none_demands_nothing(number: str) -> None:
    assert gang_of({"pod-group.scheduling.sigs.k8s.io/min-available": number}, {}) is None
    assert gang_of(None, None) is None


@pytest.mark.parametrize("number", [10**9, 2**63 - 1, 2**70])
@pytest.mark.parametrize("kind", RESIZED)
def test_a_gang_larger_than_the_job_needs_all_of_it(kind: str, number: int) -> None:
    """Also one that several jobs share; no number grows beyond the bounds of the CRD."""
    value = job(kind, elastic(kind), pod_group(number))
    assert (value.spec.min_workers, value.spec.requested_workers) == (4, 4)
    assert value.spec.gang is not None
    assert value.spec.gang.pods <= MAX_COUNT
    assert gang_sentence(value.spec).endswith("so the job needs all of its 4 hosts.")


@pytest.mark.parametrize("number", [-1, None])
def test_a_podgroup_without_a_number_demands_nothing(number: int | None) -> None:
    assert least("pytorchjob", elastic("pytorchjob"), pod_group(number)) == 1


@pytest.mark.parametrize("spec", ["many", [], {"minMember": "three"}, {"minMember": {"of": 3}}, {"minMember": 1.5}])
def test_a_podgroup_of_another_form_is_unread(spec: object) -> None:
    metadata = {"name": "bert", "namespace": "team", "uid": "u", "resourceVersion": "7"}
    with pytest.raises(msgspec.MsgspecError):
        read_pod_group(msgspec.json.encode({"metadata": metadata, "spec": spec}), VOLCANO)


def test_a_launcher_is_a_pod_of_its_gang_and_no_host() -> None:
    """mpi-operator takes the launcher into the PodGroup that it makes; our operator for TrainingJobs does not."""
    policy = {"runPolicy": {"schedulingPolicy": {"minAvailable": 4}}}
    assert least("mpijob", {**elastic("mpijob"), **policy}) == 3
    assert least("mpijob", elastic("mpijob"), pod_group(4, owner="job-uid")) == 3
    assert least("trainingjob", elastic("trainingjob"), pod_group(3, owner="job-uid")) == 3


@pytest.mark.parametrize(("marked", "needed"), [(("Worker", "Launcher"), 2), (("Worker",), 3), (("Launcher",), 1)])
def test_a_launcher_outside_the_gang_is_not_counted(marked: Sequence[str], needed: int) -> None:
    spec = elastic("mpijob")
    for role in marked:
        template_of("mpijob", spec, role)["metadata"] = {"labels": {"scheduling.x-k8s.io/pod-group": "bert"}}
    assert least("mpijob", spec, pod_group(3, form=COSCHEDULING)) == needed


def test_roles_outside_the_gang_come_on_top() -> None:
    """The master is a host like the workers, and always there."""
    spec = elastic("pytorchjob")
    template = {"spec": {"containers": [{"name": "main"}]}}
    spec["pytorchReplicaSpecs"]["Master"] = {"replicas": 1, "template": template}
    assert least("pytorchjob", spec, pod_group(3)) == 3
    template_of("pytorchjob", spec)["metadata"] = {"labels": {"scheduling.x-k8s.io/pod-group": "bert"}}
    assert least("pytorchjob", spec, pod_group(3)) == 4


@pytest.mark.parametrize("kind", ["pytorchjob", "tfjob"])
def test_a_scheduling_policy_demands_pods(kind: str) -> None:
    policy = {"runPolicy": {"schedulingPolicy": {"minAvailable": 3}}}
    value = job(kind, {**elastic(kind), **policy})
    assert value.spec.min_workers == 3
    assert gang_sentence(value.spec).startswith("runPolicy.schedulingPolicy.minAvailable demands 3 pods")


def test_volcanos_own_minimum_counts_if_it_is_not_all_pods() -> None:
    """The default of Volcano is all pods, which is lowered with the sizes."""
    assert least("vcjob", {**elastic("vcjob"), "minAvailable": 3}) == 3
    assert least("vcjob", {**elastic("vcjob"), "minAvailable": 4}) == 1
    assert least("vcjob", {**elastic("vcjob"), "minAvailable": 3}, annotations=OPTED_IN) == 3
    assert least("vcjob", {**elastic("vcjob"), "minAvailable": 4}, annotations=OPTED_IN) == 4


def test_a_gang_of_all_pods_that_the_controller_keeps_at_the_jobs_size_is_no_minimum() -> None:
    """training-operator writes the number of pods that the job has at present, shortly after it has changed."""
    spec, resized = elastic("pytorchjob"), {**ELASTIC, f"{PREFIX}requested-workers": "4"}
    own = partial(pod_group, owner="job-uid")
    assert least("pytorchjob", spec, own(4)) == 1
    known = job("pytorchjob", spec, own(4))
    for number in (4, 3):
        smaller = job("pytorchjob", elastic("pytorchjob", 3), own(number), known=known, annotations=resized)
        assert (smaller.spec.min_workers, smaller.spec.requested_workers) == (1, 4)


def test_a_number_that_stays_although_the_size_has_changed_is_a_minimum() -> None:
    resized = {**ELASTIC, f"{PREFIX}requested-workers": "4"}
    own = partial(pod_group, owner="job-uid")
    known = job("pytorchjob", elastic("pytorchjob"), own(3))
    assert known.spec.min_workers == 3
    assert least("pytorchjob", elastic("pytorchjob", 3), own(3), known=known, annotations=resized) == 3
    assert least("pytorchjob", elastic("pytorchjob", 3), own(4), known=known, annotations=resized) == 1


def test_a_number_that_nobody_can_change_is_a_minimum() -> None:
    own = pod_group(4, owner="job-uid", form=KUBERNETES_1_36)
    assert least("batchjob", elastic("batchjob"), own) == 4
    assert least("batchjob", elastic("batchjob"), pod_group(4, owner="job-uid", form=KUBERNETES_1_37)) == 1


def test_a_minimum_does_not_fall_while_its_podgroup_is_gone() -> None:
    """Controllers delete it with the pods of a job that they suspend, and Volcano empties it."""
    known = job("pytorchjob", elastic("pytorchjob"), pod_group(3))
    gone = job("pytorchjob", elastic("pytorchjob"), known=known)
    assert gone.spec == known.spec
    assert least("pytorchjob", elastic("pytorchjob"), pod_group(0), known=gone) == 3
    assert least("pytorchjob", elastic("pytorchjob"), pod_group(2), known=gone) == 2
    assert least("pytorchjob", elastic("pytorchjob"), pod_group(2, "another"), known=gone) == 3


def test_a_minimum_in_the_jobs_own_words_goes_with_them() -> None:
    policy = {"runPolicy": {"schedulingPolicy": {"minAvailable": 3}}}
    known = job("pytorchjob", {**elastic("pytorchjob"), **policy})
    assert job("pytorchjob", elastic("pytorchjob"), known=known).spec.gang is None


@given(
    own=st.integers(1, 9),
    size=st.integers(1, 9),
    start=st.none() | st.integers(1, 9),
    workers=st.integers(1, 20),
)
def test_no_size_of_a_run_is_below_the_gangs(own: int, size: int, start: int | None, workers: int) -> None:
    """And none is above what the job has requested because of it."""
    before = Spec(
        framework=Framework.TORCHRUN,
        min_workers=min(own, size),
        max_workers=size,
        requested_workers=size,
        least_to_start=None if start is None else min(start, size),
    )
    spec = with_gang(before, GangMinimum(workers=workers, pods=workers, source="PodGroup a"))
    assert min(workers, size) <= spec.min_workers <= size
    assert spec.min_workers >= before.min_workers
    assert before.start_workers <= spec.start_workers <= size
    assert spec.start_workers >= spec.min_workers or start is not None
    assert spec.start_workers >= min(workers, size)
    assert with_gang(before, None) == before


async def _nobody() -> Mapping[str, str]:
    return {}


async def test_podgroups_are_found_by_owner_and_by_name_and_say_only_changes_that_matter() -> None:
    """The status of a PodGroup changes with each of its pods."""
    told = list[int]()
    server = ApiServer(Access(url="http://127.0.0.1:1", namespace="", tls=None, credentials=_nobody), 1.0)
    groups = PodGroups(server, Clock(), lambda group: told.append(group.least), Bulkhead(Clock()))
    [cache] = groups.followers[VOLCANO.resource.api_version]._caches.values()
    owned, named = pod_group(3, "owned", owner="job-uid"), pod_group(2, "named")
    for each in (owned, named):
        cache.apply(each)
    bert = BY_NAME["pytorchjob"].decode(manifest(elastic("pytorchjob"), ELASTIC, {}))
    assert {each.name for each in groups.of(bert, ["named"])} == {"owned", "named"}
    assert {each.name for each in groups.of(bert, ())} == {"owned"}
    cache.apply(pod_group(3, "owned", owner="job-uid", version=8))
    assert told == [3, 2]
    cache.apply(pod_group(4, "owned", version=9))
    assert told == [3, 2, 3, 4]
    assert not groups.of(bert, ())
    cache.apply_deletion(pod_group(2, "named", version=10))
    assert told == [3, 2, 3, 4, 2]
    assert not groups.of(bert, ["named"])
    await server.close()
