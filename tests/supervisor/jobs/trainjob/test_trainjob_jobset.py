"""What a TrainJob is taken for, with the JobSet that its controller has made of it, or without one."""

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.kubernetes.access import Access
from servicekit.kubernetes.client import ResourceClient
from servicekit.kubernetes.server import ApiServer
from supervisor.cluster.objects import Pod, read_pod
from supervisor.cluster.view import ClusterView
from supervisor.domain.ids import Host, JobName
from supervisor.domain.job import Capability, Phase, Result, SupervisedJob
from supervisor.identity.tokens import ProcessPrincipal
from supervisor.ingest.cluster.jobs import JobReconciler
from supervisor.jobs.cache import ClusterJobs, JobCache, connect
from supervisor.jobs.jobset.kind import JOBSET
from supervisor.jobs.kind import ClusterContext, JobState
from supervisor.jobs.queues.kueue.workloads import Workloads
from supervisor.jobs.registry import POD_LABELS, process_of
from supervisor.jobs.trainjob.kind import TRAINJOB
from supervisor.store.sqlite import SqliteStore
from tests.supervisor.decide.decide_builders import running_job
from tests.supervisor.store.store_behaviour import opened

NAME, JOBSET_NAME = JobName("team/trainjob.bert"), JobName("team/jobset.bert")
PREFIX = "job-supervisor.kube-ai.io/"
MANAGED = {f"{PREFIX}managed-by-job-supervisor": "true"}
OWNER = {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob", "name": "bert", "controller": True}
_LABEL = "jobset.sigs.k8s.io/"
_MADE, _RESUMED = "2023-11-14T22:20:00Z", "2023-11-14T22:23:20Z"
_OPTED_IN = {"metadata": {"annotations": MANAGED}, "spec": {"containers": []}}
_HOSTS = {Host("bert-node-0-0"), Host("bert-node-0-1")}


def _metadata(uid: str, **more: Any) -> dict[str, Any]:
    return {
        "name": "bert",
        "namespace": "team",
        "uid": uid,
        "resourceVersion": "7",
        "creationTimestamp": _MADE,
        **more,
    }


def _trainjob(*, annotations: dict[str, str] | None = None, **spec: Any) -> Any:
    """The manifest of a TrainJob that leaves its size to its runtime."""
    opted_in = MANAGED if annotations is None else annotations
    runtime = {"runtimeRef": {"name": "torch-distributed"}, "trainer": {"numNodes": 2}}
    return {"metadata": _metadata("trainjob-uid", annotations=opted_in), "spec": {**runtime, **spec}}


def _jobset(
    *, owner: str = "trainjob-uid", template: Any = None, status: dict[str, Any] | None = None, **spec: Any
) -> Any:
    """That of the JobSet of two pods that its controller has made."""
    pods = {"spec": {"containers": [{"name": "node", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}}
    job = {"completionMode": "Indexed", "parallelism": 2, "completions": 2, "template": template or pods}
    return {
        "metadata": _metadata("jobset-uid", ownerReferences=[{**OWNER, "uid": owner}]),
        "spec": {"replicatedJobs": [{"name": "node", "replicas": 1, "template": {"spec": job}}], **spec},
        "status": status or {},
    }


def _pod(index: int, *, jobset: str = "jobset-uid") -> Pod:
    """A running pod as the controller of JobSets labels it."""
    body = {
        "metadata": {
            "name": f"bert-node-0-{index}-x7k2p",
            "generateName": f"bert-node-0-{index}-",
            "namespace": "team",
            "uid": f"{jobset}-{index}",
            "resourceVersion": "8",
            "labels": {f"{_LABEL}jobset-name": "bert", f"{_LABEL}jobset-uid": jobset},
            "ownerReferences": [
                {"apiVersion": "batch/v1", "kind": "Job", "name": "bert-node-0", "uid": "u", "controller": True}
            ],
        },
        "spec": {"nodeName": "node", "hostname": f"bert-node-0-{index}", "containers": []},
        "status": {"phase": "Running"},
    }
    return read_pod(msgspec.json.encode(body), POD_LABELS)


class TrainJobScene:
    """The caches of both kinds, filled as their followers fill them."""

    def __init__(self, server: ApiServer) -> None:
        clock = Clock()
        view = ClusterView(server, POD_LABELS, clock, lambda: None, Bulkhead(Clock()))
        self._pods_changed = view.pods_changed
        self.trainjobs = JobCache(TRAINJOB, server, view, clock, Bulkhead(Clock()))
        self.jobsets = JobCache(JOBSET, server, view, clock, Bulkhead(Clock()))
        context = ClusterContext(
            bulkhead=Bulkhead(Clock()),
            server=server,
            pods=view.pod_collection,
            snapshot=lambda: pytest.fail("nobody asks"),
            may_act=lambda: True,
            on_change=lambda: None,
            clock=clock,
        )
        workloads = Workloads(server, clock, lambda _names: None, Bulkhead(Clock()))
        self.jobs = ClusterJobs(
            [
                connect(self.trainjobs.kind, self.trainjobs, context, workloads),
                connect(self.jobsets.kind, self.jobsets, context, workloads),
            ]
        )
        self.changed = set[JobName]()
        self.jobs.subscribe(self.changed.update)

    def there_is(self, *, trainjob: Any = None, jobset: Any = None, pods: tuple[Pod, ...] = ()) -> None:
        if trainjob is not None:
            self.trainjobs.wrote(self.trainjobs.kind.decode(msgspec.json.encode(trainjob)))
        if jobset is not None:
            self.jobsets.wrote(self.jobsets.kind.decode(msgspec.json.encode(jobset)))
        for pod in pods:
            for hook in self._pods_changed:
                hook(None, pod)

    def observed(self, name: JobName = NAME, known: SupervisedJob | None = None) -> SupervisedJob | None:
        connected, state = self.jobs.of(name), self.jobs.state(name)
        assert connected is not None
        assert state is not None
        return connected.cache.kind.observe(state, known, 1_700_001_000.0)

    def process(self, pod: Pod) -> ProcessPrincipal | None:
        return process_of(pod, self.jobs.owner_of)


async def _nobody() -> Mapping[str, str]:
    return {}


@pytest.fixture
async def scene() -> AsyncIterator[TrainJobScene]:
    server = ApiServer(Access(url="http://127.0.0.1:1", namespace="", tls=None, credentials=_nobody), 1.0)
    yield TrainJobScene(server)
    await server.close()


def test_a_trainjob_has_the_size_and_the_pods_of_its_jobset(scene: TrainJobScene) -> None:
    """Its hosts are the pods of that, before they are there and then; it has one size."""
    scene.there_is(trainjob=_trainjob(), jobset=_jobset())
    waiting = scene.observed()
    scene.there_is(pods=(_pod(0), _pod(1)))
    running = scene.observed()
    assert waiting is not None
    assert running is not None
    assert (waiting.observed.running, running.observed.running) == (False, True)
    assert waiting.observed.hosts == running.observed.hosts == _HOSTS
    assert (running.uid, running.spec.min_workers, running.spec.requested_workers) == ("trainjob-uid", 2, 2)
    assert Capability.FIXED_HOSTS in running.spec.capabilities
    request = scene.jobs.resource_request(NAME)
    assert request is not None
    assert request.worker.requests["nvidia.com/gpu"] == 1000
    assert set(scene.jobs.placements(NAME)) == _HOSTS


def test_its_jobset_is_no_job_of_its_own(scene: TrainJobScene) -> None:
    """Nor do its pods speak for that, but for the TrainJob, also where their template opts in."""
    scene.there_is(trainjob=_trainjob(), jobset=_jobset(template=_OPTED_IN), pods=(_pod(0),))
    assert scene.observed(JOBSET_NAME) is None
    assert scene.process(_pod(0)) == ProcessPrincipal(NAME, "trainjob-uid", None, Host("bert-node-0-0"))


@pytest.mark.parametrize("owner", ["another TrainJob of that name, deleted meanwhile", ""])
def test_a_jobset_that_only_has_its_name_is_not_its_own(scene: TrainJobScene, owner: str) -> None:
    """Whatever its pods say, they speak for no TrainJob, and the TrainJob has no run."""
    scene.there_is(trainjob=_trainjob(), jobset=_jobset(owner=owner), pods=(_pod(0), _pod(1)))
    assert scene.observed() is None
    assert scene.process(_pod(0)) == ProcessPrincipal(JOBSET_NAME, "jobset-uid", None, Host("bert-node-0-0"))


def test_pods_of_an_earlier_jobset_of_its_name_are_not_its_own(scene: TrainJobScene) -> None:
    scene.there_is(trainjob=_trainjob(), jobset=_jobset(), pods=(_pod(0, jobset="old"), _pod(1, jobset="old")))
    value = scene.observed()
    assert value is not None
    assert not value.observed.running
    assert scene.process(_pod(0, jobset="old")) == ProcessPrincipal(JOBSET_NAME, "old", None, Host("bert-node-0-0"))


def test_a_change_of_its_jobset_or_of_a_pod_is_a_change_of_the_trainjob(scene: TrainJobScene) -> None:
    """A JobSet of which no TrainJob has the name is none of its business."""
    scene.there_is(trainjob=_trainjob())
    scene.changed.clear()
    scene.there_is(jobset=_jobset())
    assert scene.changed == {NAME, JOBSET_NAME}
    scene.changed.clear()
    scene.there_is(pods=(_pod(0),))
    assert NAME in scene.changed


@pytest.mark.parametrize(
    ("trainjob", "jobset"),
    [
        (_trainjob(), None),
        (_trainjob(suspend="yes"), _jobset()),
        (_trainjob(managedBy=7), _jobset()),
        ({**_trainjob(), "spec": "none"}, _jobset()),
        (_trainjob(), _jobset(replicatedJobs="many")),
        (_trainjob(), _jobset(replicatedJobs=[])),
        (_trainjob(), _jobset(template={"spec": {"containers": "none"}})),
        (_trainjob(annotations={}), _jobset()),
    ],
    ids=["no JobSet", "suspend", "manager", "spec", "unreadable", "empty", "template", "not opted in"],
)
def test_one_that_is_not_understood_is_left_alone(scene: TrainJobScene, trainjob: Any, jobset: Any) -> None:
    """Its runtime may be missing, so that it has no JobSet; either may be anything that the API server takes."""
    scene.there_is(trainjob=trainjob, jobset=jobset, pods=(_pod(0),))
    assert scene.observed() is None
    assert scene.jobs.state(NAME) is not None


def test_more_is_not_read_of_it(scene: TrainJobScene) -> None:
    """What it asks its runtime for is in its JobSet, so it may be unreadable."""
    scene.there_is(trainjob={**_trainjob(runtimeRef=3, trainer="none"), "status": 5}, jobset=_jobset())
    assert scene.observed() is not None


def test_what_is_no_object_is_refused() -> None:
    for data in (b"[]", b'{"metadata": 1}', b"{}"):
        with pytest.raises(msgspec.MsgspecError):
            TRAINJOB.decode(data)


def test_the_pods_of_its_runtime_opt_it_in(scene: TrainJobScene) -> None:
    """Their annotations come from the template of the runtime, which is that of the JobSet."""
    scene.there_is(trainjob=_trainjob(annotations={}), jobset=_jobset(template=_OPTED_IN))
    assert scene.observed() is not None


def test_it_is_suspended_as_it_says_and_released_as_its_jobset_says(scene: TrainJobScene) -> None:
    """Its controller says so of the TrainJob before anything is suspended, and also where that fails."""
    ours = {**MANAGED, f"{PREFIX}suspended-by": "elastic-job-supervisor"}
    conditions = [{"type": "Suspended", "status": "True", "lastTransitionTime": _MADE}]
    told = {**_trainjob(suspend=True, annotations=ours), "status": {"conditions": conditions}}
    for jobset, is_suspended in ((_jobset(), False), (_jobset(suspend=True, status={"conditions": conditions}), True)):
        jobset["metadata"]["resourceVersion"] = str(8 + is_suspended)
        scene.there_is(trainjob=told, jobset=jobset)
        state, value = scene.jobs.state(NAME), scene.observed()
        assert state is not None
        assert value is not None
        assert (state.job.suspended, "Suspended" in state.job.conditions) == (True, is_suspended)
        assert value.decision.phase is Phase.SUSPENDED


def test_a_trainjob_that_a_person_has_suspended_is_left_alone(scene: TrainJobScene) -> None:
    scene.there_is(trainjob=_trainjob(suspend=True), jobset=_jobset(suspend=True))
    assert scene.observed() is None


def test_each_resume_and_each_restart_of_its_jobset_is_another_run(scene: TrainJobScene) -> None:
    resumed: dict[str, Any] = {"conditions": [{"type": "Suspended", "status": "False", "lastTransitionTime": _RESUMED}]}
    runs = set[str]()
    statuses: list[dict[str, Any]] = [{}, resumed, {**resumed, "restarts": 1}]
    for number, status in enumerate(statuses, start=8):
        jobset = _jobset(status=status)
        jobset["metadata"]["resourceVersion"] = str(number)
        scene.there_is(trainjob=_trainjob(), jobset=jobset)
        state = scene.jobs.state(NAME)
        assert state is not None
        runs.add(state.run_id)
    assert len(runs - {""}) == 3


def test_another_controller_runs_its_own_jobs() -> None:
    kind = TRAINJOB
    for manager, elsewhere in {
        "kueue.x-k8s.io/multikueue": True,
        "trainer.kubeflow.org/trainjob-controller": False,
    }.items():
        job = kind.decode(msgspec.json.encode(_trainjob(managedBy=manager)))
        assert JobState.of(kind, NAME, job, []).job.elsewhere is elsewhere


@pytest.mark.parametrize(("condition", "result"), [("Completed", Result.SUCCEEDED), ("Failed", Result.FAILED)])
def test_it_ends_as_its_jobset_does(scene: TrainJobScene, condition: str, result: Result) -> None:
    scene.there_is(trainjob=_trainjob(), jobset=_jobset())
    known = scene.observed()
    ended = _jobset(status={"conditions": [{"type": condition, "status": "True"}]})
    ended["metadata"]["resourceVersion"] = "8"
    scene.there_is(jobset=ended)
    value = scene.observed(known=known)
    assert value is not None
    assert value.observed.result is result


async def test_a_stored_trainjob_is_kept_until_the_jobsets_were_listed(scene: TrainJobScene, tmp_path: Path) -> None:
    """A list of TrainJobs alone does not say that one has no run any more."""
    scene.there_is(trainjob=_trainjob())
    scene.trainjobs.follower._listed.add("")
    known = running_job(name=NAME)
    async with opened(lambda: SqliteStore.open(tmp_path / "store.sqlite")) as store:
        await store.put_job(NAME, lambda _: known)
        reconciler = JobReconciler(scene.jobs, store, Clock(), Bulkhead(Clock()))
        await reconciler._reconcile(NAME)
        assert NAME in store.snapshot().jobs
        scene.jobsets.follower._listed.add("")
        await reconciler._reconcile(NAME)
        assert NAME not in store.snapshot().jobs


async def test_it_is_suspended_by_its_own_field(scene: TrainJobScene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its JobSet is never written: its controller would take that back."""
    written = list[Any]()

    async def merge(_client: Any, read: Any, content: Any, **more: Any) -> Any:
        written.append((read.metadata.uid, content, more["metadata"]["annotations"]))
        return read

    monkeypatch.setattr(ResourceClient, "merge", merge)
    scene.there_is(trainjob=_trainjob(), jobset=_jobset(), pods=(_pod(0),))
    connected, state = scene.jobs.of(NAME), scene.jobs.state(NAME)
    assert connected is not None
    assert state is not None
    await connected.actions.suspend(state)
    [(uid, content, annotations)] = written
    assert (uid, content) == ("trainjob-uid", {"spec": {"suspend": True}})
    assert annotations == {f"{PREFIX}suspended-by": "elastic-job-supervisor"}
