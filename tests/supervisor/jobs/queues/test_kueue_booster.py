"""The boosts that are written into a Workload, and those that are left alone."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest
from aiohttp import web
from structlog.testing import capture_logs

from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.kubernetes.errors import ApiError
from servicekit.kubernetes.server import ApiServer
from supervisor.decide.situation import RankZero
from supervisor.domain.ids import Host, JobName
from supervisor.domain.job import Result, SupervisedJob
from supervisor.domain.order import Worker
from supervisor.fanout.ranks import Saves
from supervisor.jobs.cache import ClusterJobs, ConnectedKind
from supervisor.jobs.kind import Admission, JobState
from supervisor.jobs.mpijob.kind import MpiJob
from supervisor.jobs.queues.kueue.booster import Booster, BoosterDependencies
from supervisor.jobs.queues.kueue.workloads import Workloads
from supervisor.store.interface import Snapshot
from tests.supervisor.decide.decide_builders import observing, running_job
from tests.supervisor.jobs.mpijob.mpijob_objects import KIND, NAME, running
from tests.supervisor.jobs.queues.test_kueue_boosts import POLICY
from tests.testkit.waiting import until

_UID = "job-uid"
_OWNER = {"kind": "MPIJob", "name": "bert", "uid": _UID, "controller": True, "apiVersion": "kubeflow.org/v2beta1"}
_KUEUES = "kueue.x-k8s.io/priority-boost"
_OURS = "job-supervisor.kube-ai.io/priority-boost"


class _BoosterClock(Clock):
    """Instants of the test."""

    __slots__ = ("seconds",)

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 1_700_000_000.0

    def now(self) -> float:
        return self.seconds


@dataclass
class _WorkloadServer:
    """An API server with one Workload, or none; `status` is its answer to patches."""

    workload: dict[str, Any] | None
    status: int = 200
    others: list[dict[str, Any]] = field(default_factory=list)
    patches: list[dict[str, Any]] = field(default_factory=list)

    async def list(self, _request: web.Request) -> web.Response:
        items = [*self.others] if self.workload is None else [self.workload, *self.others]
        return web.json_response({"metadata": {"resourceVersion": "100"}, "items": items})

    async def patch(self, request: web.Request) -> web.Response:
        body = json.loads(await request.read())
        self.patches.append(body)
        assert self.workload is not None
        metadata = self.workload["metadata"]
        if self.status != 200 or body["metadata"]["resourceVersion"] != metadata["resourceVersion"]:
            status = self.status if self.status != 200 else 409
            return web.json_response({"message": "no", "code": status}, status=status)
        merged = {**metadata["annotations"], **body["metadata"]["annotations"]}
        kept = {name: value for name, value in merged.items() if value is not None}
        version = str(max(100, int(metadata["resourceVersion"])) + 1)
        self.workload = {**self.workload, "metadata": {**metadata, "annotations": kept, "resourceVersion": version}}
        return web.json_response(self.workload)


class _MpiJobCache:
    """The jobs of one kind, as the test says."""

    kind = KIND

    def __init__(self) -> None:
        self.states: dict[JobName, JobState[MpiJob]] = {NAME: running()}
        # Nobody is told here: the test looks when it has changed something.
        self.listeners: list[object] = []

    @property
    def names(self) -> list[JobName]:
        return list(self.states)

    def state(self, name: JobName) -> JobState[MpiJob] | None:
        return self.states.get(name)


class _BoosterScene:
    def __init__(self, server: _WorkloadServer, api: ApiServer) -> None:
        self.server, self.time, self.saves, self.cache = server, _BoosterClock(), Saves(), _MpiJobCache()
        self.jobs: dict[JobName, SupervisedJob] = {NAME: replace(running_job(), name=NAME, uid=_UID)}
        self.workloads = Workloads(api, self.time, lambda _names: None, Bulkhead(Clock()))
        self.policy = POLICY
        self.leads = True
        self.lead()

    def lead(self) -> None:
        """Another leader, which knows nothing."""
        self.saves = Saves()
        self.booster = Booster(
            BoosterDependencies(
                bulkhead=Bulkhead(Clock()),
                jobs=ClusterJobs([ConnectedKind(cast("Any", self.cache), cast("Any", None))]),
                workloads=self.workloads,
                store=cast("Any", self),
                saves=self.saves,
                rank_zero=lambda _name, _run: RankZero(connected=True, since=0.0),
                may_act=lambda: self.leads,
                policy=self.policy,
                clock=self.time,
            )
        )

    def snapshot(self) -> Snapshot:
        return Snapshot(version=1, notices={}, jobs=self.jobs)

    async def look(self, after: float = 0.0) -> dict[str, str]:
        """The annotations of the Workload after the booster has looked at the job."""
        self.time.seconds += after
        await self.booster._reconcile(NAME)
        return self.annotations

    async def changes(self, **changes: Any) -> None:
        """Somebody else has changed the Workload."""
        assert self.server.workload is not None
        version = str(int(self.server.workload["metadata"]["resourceVersion"]) + 1000)
        self.server.workload |= {name: value for name, value in changes.items() if name != "annotations"}
        annotations = changes.get("annotations", self.annotations)
        self.server.workload["metadata"] |= {"annotations": annotations, "resourceVersion": version}
        await self.workloads.follower.first()

    @property
    def annotations(self) -> dict[str, str]:
        assert self.server.workload is not None
        return dict(self.server.workload["metadata"]["annotations"])

    def saved(self, seconds: float | None = 60.0) -> None:
        worker = Worker("process", self.jobs[NAME].id, 1, Host("worker-0"), 0)
        self.saves.saved(worker, seconds, self.time.seconds)


def _status(*true: str) -> dict[str, Any]:
    return {"conditions": [{"type": kind, "status": "True", "reason": "Preempted"} for kind in true]}


def _workload() -> dict[str, Any]:
    """An admitted Workload with an annotation of somebody's."""
    metadata = {"name": "w", "namespace": "team", "uid": "w", "resourceVersion": "7", "ownerReferences": [_OWNER]}
    return {
        "metadata": {**metadata, "annotations": {"a": "b"}},
        "spec": {"active": True, "queueName": "gpus"},
        "status": _status("QuotaReserved", "Admitted"),
    }


@asynccontextmanager
async def _scene(directory: Path, workload: dict[str, Any] | None) -> AsyncIterator[_BoosterScene]:
    server = _WorkloadServer(workload)
    application = web.Application()
    application.router.add_get("/{path:.*}", server.list)
    application.router.add_patch("/{path:.*}", server.patch)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    api = await ApiServer.connect(_kubeconfig(directory, runner.addresses[0][1]), 5.0)
    try:
        one = _BoosterScene(server, api)
        await one.workloads.follower.first()
        yield one
    finally:
        await api.close()
        await runner.cleanup()


def _kubeconfig(directory: Path, port: int) -> str:
    content = {
        "current-context": "x",
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "u", "user": {"token": "secret"}}],
    }
    file = directory / "kubeconfig"
    file.write_text(json.dumps(content))
    return str(file)


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[_BoosterScene]:
    async with _scene(tmp_path, _workload()) as one:
        yield one


def _boosted(value: int) -> dict[str, str]:
    return {"a": "b", _KUEUES: str(value), _OURS: str(value)}


@pytest.mark.parametrize(
    "changes",
    [
        {"namespace": "tenant"},
        {"ownerReferences": [{**_OWNER, "name": "another"}]},
        {"ownerReferences": [{**_OWNER, "kind": "PyTorchJob", "apiVersion": "kubeflow.org/v1"}]},
        {"ownerReferences": [{**_OWNER, "controller": False}]},
    ],
)
async def test_a_workload_that_only_names_the_uid_of_a_job_is_not_the_jobs(scene: _BoosterScene, changes: Any) -> None:
    """Whoever may create Workloads in another namespace may put any uid into them, and deactivate them."""
    assert scene.server.workload is not None
    assert scene.workloads.admission(running()) == Admission()
    scene.server.workload["metadata"] |= changes
    await scene.changes(spec={"active": False, "queueName": "gpus"}, status={})
    assert scene.workloads.admission(running()) is None
    assert await scene.look(after=600) == {"a": "b"}


async def test_a_workload_changes_its_job_only_by_its_own_namespace_and_name(scene: _BoosterScene) -> None:
    """The one of another namespace stands beside the job's own, also after that has changed."""
    foreign = _workload()
    foreign["metadata"] |= {"namespace": "tenant", "uid": "foreign", "resourceVersion": "9000"}
    scene.server.others = [{**foreign, "spec": {"active": False}}]
    await scene.changes()
    assert scene.workloads.admission(running()) == Admission()
    await scene.changes(spec={"active": False, "queueName": "gpus"}, status={})
    admission = scene.workloads.admission(running())
    assert admission is not None
    assert admission.held == "The job's Workload was deactivated; somebody has to activate it."


async def test_a_boost_grows_and_a_checkpoint_takes_it_back(scene: _BoosterScene) -> None:
    """Each change is one write, and a look that changes nothing is none."""
    assert await scene.look() == {"a": "b"}
    assert await scene.look(after=600) == _boosted(1)
    assert await scene.look(after=10) == _boosted(1)
    assert await scene.look(after=600) == _boosted(2)
    scene.saved()
    assert await scene.look(after=10) == _boosted(2)
    assert await scene.look(after=300) == {"a": "b"}
    assert len(scene.server.patches) == 3
    assert await scene.look(after=300) == _boosted(1)


async def test_a_job_that_saves_within_its_grace_gets_none(scene: _BoosterScene) -> None:
    scene.saved(seconds=20.0)
    await scene.look()
    assert await scene.look(after=86400) == {"a": "b"}


async def test_another_leader_goes_on_from_what_is_written(scene: _BoosterScene) -> None:
    await scene.look()
    assert await scene.look(after=1200) == _boosted(2)
    scene.lead()
    assert await scene.look(after=10) == _boosted(2)
    assert await scene.look(after=600) == _boosted(3)


@pytest.mark.parametrize(
    "status",
    [
        _status("QuotaReserved", "Admitted", "Evicted"),
        _status("QuotaReserved"),
        _status("QuotaReserved", "Admitted", "Finished"),
    ],
)
async def test_only_an_admitted_workload_keeps_its_boost(scene: _BoosterScene, status: dict[str, Any]) -> None:
    """At once: a boost would change the place of an evicted job in its queue."""
    await scene.look()
    assert await scene.look(after=1200) == _boosted(2)
    await scene.changes(status=status)
    assert await scene.look(after=1) == {"a": "b"}


@pytest.mark.parametrize("change", ["opted out", "ended", "deactivated", "not running", "of another job"])
async def test_only_a_running_job_that_has_opted_in_keeps_its_boost(scene: _BoosterScene, change: str) -> None:
    await scene.look()
    assert await scene.look(after=1200) == _boosted(2)
    job = scene.jobs[NAME]
    match change:
        case "opted out":
            del scene.jobs[NAME]
        case "ended":
            scene.jobs[NAME] = observing(job, result=Result.SUCCEEDED)
        case "deactivated":
            await scene.changes(spec={"active": False, "queueName": "gpus"})
        case "not running":
            scene.jobs[NAME] = observing(job, running=False)
        case _:
            scene.jobs[NAME] = replace(job, uid="later")
    assert await scene.look(after=1) == {"a": "b"}


async def test_a_job_that_is_known_later_than_its_workload_gets_one(scene: _BoosterScene) -> None:
    """Nothing changes in the cluster in between."""
    job = scene.jobs.pop(NAME)
    scene.policy = replace(POLICY, step_seconds=0.01)
    scene.lead()
    task = asyncio.create_task(scene.booster.run())
    await until(lambda: not scene.booster._queue._waiting, "the job was looked at")
    scene.jobs[NAME] = job
    await until(lambda: scene.booster._boosts, "the job is known")
    scene.time.seconds += 1200
    await until(lambda: scene.annotations == _boosted(POLICY.maximum), "the boost is written")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_the_boosts_are_removed_when_the_setting_is_taken_back(scene: _BoosterScene) -> None:
    await scene.look()
    assert await scene.look(after=1200) == _boosted(2)
    scene.policy = replace(POLICY, maximum=0)
    scene.lead()
    task = asyncio.create_task(scene.booster.run())
    await until(lambda: scene.annotations == {"a": "b"}, "the boost is removed")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert len(scene.server.patches) == 2


@pytest.mark.parametrize(
    "written", [{_KUEUES: "7"}, {_KUEUES: "-7"}, {_KUEUES: "7", _OURS: "3"}, {_KUEUES: "much", _OURS: "much"}]
)
async def test_a_boost_of_somebody_else_is_left_alone(scene: _BoosterScene, written: dict[str, str]) -> None:
    """Also when the job is evicted; it is logged once."""
    await scene.changes(annotations=written)
    with capture_logs() as lines:
        await scene.look()
        assert await scene.look(after=1200) == written
        await scene.changes(status=_status("Evicted"))
        assert await scene.look(after=1200) == written
    assert [line["event"] for line in lines] == ["workload.boosted_by_other"]
    assert not scene.server.patches


async def test_a_boost_that_somebody_has_changed_is_theirs_until_they_remove_it(scene: _BoosterScene) -> None:
    await scene.look()
    await scene.look(after=1200)
    await scene.changes(annotations={_KUEUES: "50", _OURS: "2"})
    assert await scene.look(after=1200) == {_KUEUES: "50", _OURS: "2"}
    await scene.changes(annotations={_OURS: "2"})
    assert await scene.look(after=1200) == {}
    assert await scene.look(after=600) == {_KUEUES: "1", _OURS: "1"}


async def test_a_workload_that_has_changed_meanwhile_is_looked_at_again(scene: _BoosterScene) -> None:
    """Somebody may have written a boost in that moment."""
    await scene.look()
    assert scene.server.workload is not None
    theirs = {"annotations": {_KUEUES: "7"}, "resourceVersion": "50"}
    scene.server.workload["metadata"] |= theirs
    assert await scene.look(after=1200) == {_KUEUES: "7"}
    await scene.workloads.follower.first()
    assert await scene.look(after=10) == {_KUEUES: "7"}
    assert len(scene.server.patches) == 1


async def test_nobody_writes_who_does_not_lead(scene: _BoosterScene) -> None:
    await scene.look()
    scene.leads = False
    assert await scene.look(after=1200) == {"a": "b"}
    assert not scene.server.patches
    scene.leads = True
    assert await scene.look(after=1) == _boosted(2)


@pytest.mark.parametrize("status", [403, 500])
async def test_a_write_that_fails_is_tried_again(scene: _BoosterScene, status: int) -> None:
    await scene.look()
    scene.server.status = status
    with pytest.raises(ApiError):
        await scene.look(after=1200)
    scene.server.status = 200
    assert await scene.look(after=1) == _boosted(2)


async def test_errors_of_the_api_server_end_no_task(scene: _BoosterScene) -> None:
    await scene.look()
    scene.time.seconds += 1200
    scene.server.status = 500
    task = asyncio.create_task(scene.booster.run())
    await until(lambda: scene.server.patches, "a write has failed")
    scene.server.status = 200
    await until(lambda: scene.annotations == _boosted(2), "the boost is written")
    assert not task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_without_kueue_there_is_nothing_to_do(tmp_path: Path) -> None:
    async with _scene(tmp_path, None) as one:
        one.booster.add([NAME])
        assert not one.booster._queue._waiting
