"""A TrainingJob that was resumed smaller grows while it runs, whatever else happens to it and its operator."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.kubernetes.server import ApiServer
from servicekit.reconcile import Notifier
from simulator.et_operator.crds import create_crds
from supervisor.cluster.view import ClusterView
from supervisor.domain.ids import Host
from supervisor.domain.job import Phase, SupervisedJob
from supervisor.jobs.cache import JobCache
from supervisor.jobs.kind import ClusterContext, KindContext
from supervisor.jobs.registry import POD_LABELS
from supervisor.jobs.trainingjob.kind import TRAININGJOB
from supervisor.jobs.trainingjob.scaleouts import ScaleOuts, scale_out_name
from supervisor.store.interface import Snapshot
from tests.controlplane.operator.operator_jobs import names, operating
from tests.controlplane.trainingjob.conftest import Operated
from tests.controlplane.trainingjob.trainingjob_world import ElasticJobs, Supervision, running, supervising
from tests.supervisor.jobs.trainingjob.trainingjob_objects import job as trainingjob
from tests.supervisor.jobs.trainingjob.trainingjob_objects import state as trainingjob_state
from tests.testkit.controlplane.api import Api
from tests.testkit.controlplane.running import ControlPlane, RunningCluster
from tests.testkit.waiting import until

pytestmark = pytest.mark.long

OURS = {"app.kubernetes.io/managed-by": "elastic-job-supervisor"}


async def smaller(jobs: ElasticJobs, supervised: Supervision, workers: int = 2) -> SupervisedJob:
    """A job of four workers that was stopped and goes on with fewer, as its second run."""
    await jobs.submit("bert", 4)
    await supervised.phase("bert", Phase.RUNNING)
    for worker in range(3):
        pod = await jobs.namespace.get_pod(f"bert-worker-{worker}")
        await supervised.notices(str(pod["spec"]["nodeName"]))
    await supervised.answers("bert")
    await supervised.phase("bert", Phase.SUSPENDED)
    await supervised.spared()
    supervised.grant("bert", workers)
    return await supervised.phase("bert", Phase.RUNNING, run=2)


ShrunkJob = Callable[..., AbstractAsyncContextManager[Supervision]]


@pytest.fixture
def shrunk_job(operated: Operated, jobs: ElasticJobs) -> ShrunkJob:
    """Supervises `bert` on four nodes after it has been resumed with fewer than its four workers."""

    @asynccontextmanager
    async def start(workers: int = 2, **policy: float) -> AsyncIterator[Supervision]:
        async with operated(4, **policy) as supervised:
            await smaller(jobs, supervised, workers)
            yield supervised

    return start


async def cordoned(api: Api, jobs: ElasticJobs, *numbers: int, unschedulable: bool = True) -> None:
    for number in numbers:
        node = f"/api/v1/nodes/node-{number}.{jobs.namespace.name}"
        await api.patch(node, {"spec": {"unschedulable": unschedulable}})


async def free_nodes(jobs: ElasticJobs) -> list[int]:
    """The numbers of those on which none of the job's workers is."""
    used = {str(pod["spec"].get("nodeName", "")).partition(".")[0] for pod in (await jobs.pods("bert")).values()}
    return [number for number in range(4) if f"node-{number}" not in used]


def workers(*numbers: int) -> frozenset[Host]:
    return frozenset(Host(f"bert-worker-{number}") for number in numbers)


async def no_scale_outs(jobs: ElasticJobs) -> None:
    async def none() -> bool:
        return not await jobs.scale_outs()

    await until(none, "there is no ScaleOut any more")


async def scale_out(jobs: ElasticJobs, phase: str) -> Any:
    async def reached() -> Any:
        found = list((await jobs.scale_outs()).values())
        return found[0] if len(found) == 1 and found[0].get("status", {}).get("phase", "") == phase else None

    return await until(reached, f"there is a ScaleOut in phase {phase or 'none'}")


@pytest.mark.brief
async def test_it_has_its_own_size_back_while_it_runs(shrunk_job: ShrunkJob, jobs: ElasticJobs) -> None:
    """In the same run, without a restart; its spec stays as it was resumed, and nothing is left behind."""
    async with shrunk_job() as supervised:
        supervised.room("bert", 2)
        job = await supervised.world.job("bert", lambda known: len(known.decision.hosts) == 4, "has grown")
        job = await supervised.world.job("bert", lambda known: known.decision.growth is None, "knows that")
        assert (job.decision.run, job.decision.phase, job.decision.hosts) == (2, Phase.RUNNING, workers(0, 1, 2, 3))
        await no_scale_outs(jobs)
        status = await jobs.phase("bert", "Running", targetWorkers=names("bert", range(4), launcher=False))
        assert not status.get("restartCount")
        asked = (await jobs.get("bert"))["spec"]["etReplicaSpecs"]["worker"]
        assert asked["replicas"] == 2
        assert job.spec.requested_workers == 4
        hostfile = jobs.edl("bert") / "hostfile"
        assert hostfile.read_text(encoding="utf-8") == "".join(f"bert-worker-{number}:1\n" for number in range(4))
        assert (jobs.edl("bert") / "discover_hosts.sh").exists()
        grown = await supervised.phase("bert", Phase.RUNNING, run=2)
        assert grown.decision.reason == "Continuing with 4 of 4 requested hosts."


async def test_it_grows_in_steps(shrunk_job: ShrunkJob, jobs: ElasticJobs) -> None:
    """Each is its own ScaleOut, of another name: the operator counts the pods of a name."""
    async with shrunk_job() as supervised:
        supervised.room("bert", 1)
        job = await supervised.world.job("bert", lambda known: len(known.decision.hosts) == 4, "has grown twice")
        assert job.decision.run == 2
        pods = await jobs.has_pods("bert", *names("bert", range(4)))
        made = [pods[f"bert-worker-{number}"]["metadata"]["labels"]["scaleout-name"] for number in (2, 3)]
        assert made[0] != made[1]
        await no_scale_outs(jobs)


async def test_an_operator_that_cannot_make_them_leaves_everything_as_it_was(
    shrunk_job: ShrunkJob, api: Api, jobs: ElasticJobs
) -> None:
    """It takes back what does not come up; we ask again later, and then it works."""
    async with shrunk_job(resume_timeout_seconds=15.0) as supervised:
        free = await free_nodes(jobs)
        await cordoned(api, jobs, *free[1:])
        supervised.room("bert", 2)
        await scale_out(jobs, "Scaling")
        job = await supervised.world.job("bert", _failed_once, "has not grown")
        assert (job.decision.phase, job.decision.hosts) == (Phase.RUNNING, workers(0, 1))
        await jobs.has_pods("bert", *names("bert", range(2)))
        await cordoned(api, jobs, *free[1:], unschedulable=False)
        job = await supervised.world.job("bert", lambda known: len(known.decision.hosts) == 4, "has grown")
        assert job.decision.run == 2


async def test_an_operator_that_does_not_act_is_not_waited_for(
    cluster: RunningCluster, jobs: ElasticJobs, tmp_path: Path
) -> None:
    """What it has not begun with is deleted; when it is back it is asked again."""
    await jobs.nodes(4)
    async with supervising(cluster, jobs.namespace, tmp_path, resume_timeout_seconds=10.0) as supervised:
        async with operating(cluster, jobs.namespace.name):
            await smaller(jobs, supervised)
            await jobs.phase("bert", "Running", currentWorkers=names("bert", range(2), launcher=False))
        supervised.room("bert", 2)
        asked = await scale_out(jobs, "")
        assert asked["spec"] == {"selector": {"name": "bert"}, "toAdd": {"count": 2}, "timeout": 7}
        supervised.room("bert", 0)
        await supervised.world.job("bert", _failed_once, "has not grown")
        await no_scale_outs(jobs)
        async with operating(cluster, jobs.namespace.name):
            supervised.room("bert", 2)
            await supervised.world.job("bert", lambda known: len(known.decision.hosts) == 4, "has grown")


async def test_a_request_that_is_refused_is_harmless(shrunk_job: ShrunkJob, api: Api, jobs: ElasticJobs) -> None:
    """The run goes on, and grows once it is not refused any more."""
    quota = f"{jobs.namespace.path}/resourcequotas"
    counted = "count/scaleouts.kai.alibabacloud.com"
    async with shrunk_job(resume_timeout_seconds=15.0) as supervised:
        await api.create(quota, {"metadata": {"name": "none"}, "spec": {"hard": {counted: "0"}}})

        async def in_force() -> bool:
            return counted in (await api.get(f"{quota}/none")).get("status", {}).get("hard", {})

        await until(in_force, "the quota is in force")
        supervised.room("bert", 2)
        await supervised.world.job("bert", _failed_once, "has not grown")
        assert not await jobs.scale_outs()
        await api.delete(f"{quota}/none")
        job = await supervised.world.job("bert", lambda known: len(known.decision.hosts) == 4, "has grown")
        assert job.decision.run == 2


async def test_a_worker_that_is_not_listed_yet_saves_nobody(shrunk_job: ShrunkJob, api: Api, jobs: ElasticJobs) -> None:
    """A notice in the middle of a growth stops the run; the next one is not harmed by what the operator had begun."""
    async with shrunk_job(resume_timeout_seconds=60.0) as supervised:
        free = await free_nodes(jobs)
        await cordoned(api, jobs, free[1])
        supervised.room("bert", 2)
        begun = await scale_out(jobs, "Scaling")

        async def one_runs() -> bool:
            pods = await jobs.pods("bert")
            phases = [pods[name]["status"]["phase"] for name in names("bert", [2, 3], launcher=False) if name in pods]
            return sorted(phases) == ["Pending", "Running"]

        await until(one_runs, "one of the two new workers runs")
        job = await supervised.phase("bert", Phase.RUNNING, run=2)
        assert job.decision.hosts == workers(0, 1)
        supervised.room("bert", 0)
        pod = await jobs.namespace.get_pod("bert-worker-1")
        await supervised.notices(str(pod["spec"]["nodeName"]))
        await supervised.answers("bert")
        await supervised.phase("bert", Phase.SUSPENDED)
        await supervised.spared()
        await cordoned(api, jobs, free[1], unschedulable=False)
        supervised.grant("bert", 4)
        job = await supervised.phase("bert", Phase.RUNNING, run=3)
        assert job.decision.hosts == workers(0, 1, 2, 3)
        assert begun["metadata"]["name"] not in await jobs.scale_outs()
        pods = await jobs.has_pods("bert", *names("bert", range(4)))
        assert not [each for each in pods.values() if "scaleout-name" in each["metadata"]["labels"]]
        assert not (await jobs.status("bert")).get("currentScaler")


async def test_a_job_that_ends_in_the_middle_is_left_alone(shrunk_job: ShrunkJob, api: Api, jobs: ElasticJobs) -> None:
    async with shrunk_job() as supervised:
        await cordoned(api, jobs, *await free_nodes(jobs))
        supervised.room("bert", 2)
        await scale_out(jobs, "Scaling")
        await jobs.end_pod("bert-launcher", "Succeeded")
        await jobs.phase("bert", "Succeeded")
        await supervised.phase("bert", Phase.FINISHED)
        await no_scale_outs(jobs)


async def test_a_person_who_suspends_it_in_the_middle_finds_nothing_of_ours(
    shrunk_job: ShrunkJob, api: Api, jobs: ElasticJobs
) -> None:
    """Their next run would lose workers to it."""
    async with shrunk_job() as supervised:
        await cordoned(api, jobs, *await free_nodes(jobs))
        supervised.room("bert", 2)
        await scale_out(jobs, "Scaling")
        await jobs.annotate("bert", "true")
        await supervised.world.forgotten("bert")
        await no_scale_outs(jobs)


async def test_a_host_that_is_gone_stays_left_out_while_the_operator_lists_it(
    shrunk_job: ShrunkJob, api: Api, jobs: ElasticJobs
) -> None:
    """It does not look at its workers while it adds some: without that a process would be started on a dead machine."""
    async with shrunk_job(workers=3, resume_timeout_seconds=30.0, leave_margin_seconds=1.0) as supervised:
        await cordoned(api, jobs, *await free_nodes(jobs))
        supervised.room("bert", 1)
        await scale_out(jobs, "Scaling")
        doomed = str((await jobs.namespace.get_pod("bert-worker-0"))["spec"]["nodeName"])
        await api.patch(f"/api/v1/nodes/{doomed}", {"spec": {"unschedulable": True}})
        await supervised.notices(doomed, left=4)
        await supervised.world.job("bert", lambda known: bool(known.decision.exclusions), "leaves it out")
        await supervised.world.job("bert", lambda known: not known.decision.exclusions, "has lost it")
        job = await supervised.phase("bert", Phase.RUNNING, run=2)
        assert job.decision.hosts == workers(1, 2)
        excluded = jobs.edl("bert") / "excluded_hosts"
        assert "bert-worker-0" in (await jobs.status("bert"))["currentWorkers"]
        assert excluded.read_text(encoding="utf-8") == "bert-worker-0\n"
        await scale_out(jobs, "ScaleFailed")

        async def let_go() -> bool:
            return not excluded.read_text(encoding="utf-8")

        await until(let_go, "the operator has taken it off its own list")
        assert "bert-worker-0" not in (await jobs.status("bert"))["currentWorkers"]


async def test_what_nobody_wants_any_more_is_deleted(
    cluster: RunningCluster, api: Api, jobs: ElasticJobs, tmp_path: Path
) -> None:
    """One of an earlier leader, which the operator has not begun with; never a person's own."""
    await jobs.nodes(4)
    async with supervising(cluster, jobs.namespace, tmp_path) as supervised:
        async with operating(cluster, jobs.namespace.name):
            job = await smaller(jobs, supervised)
        owner = {"apiVersion": "kai.alibabacloud.com/v1alpha1", "kind": "TrainingJob", "name": "bert", "uid": job.uid}
        path = f"/apis/kai.alibabacloud.com/v1alpha1/namespaces/{jobs.namespace.name}/scaleouts"
        for name, labels in ((scale_out_name(job.uid, 3), OURS), ("theirs", {})):
            metadata = {"name": name, "labels": labels, "ownerReferences": [{**owner, "controller": True}]}
            spec = {"selector": {"name": "bert"}, "toAdd": {"count": 1}}
            kind = {"apiVersion": owner["apiVersion"], "kind": "ScaleOut"}
            await api.create(path, {**kind, "metadata": metadata, "spec": spec})

        async def theirs_alone() -> bool:
            return set(await jobs.scale_outs()) == {"theirs"}

        await until(theirs_alone, "ours is deleted")


async def test_without_their_definition_nothing_grows(own_controlplane: ControlPlane) -> None:
    """Nor is a resume held up by it; a definition that comes later is found."""
    server = await ApiServer.connect(str(own_controlplane.cluster.kubeconfig), 10.0)
    clock, changes = Clock(), Notifier()
    wakeup = changes.subscribe()
    view = ClusterView(server, POD_LABELS, clock, lambda: None, Bulkhead(Clock()))
    context = ClusterContext(
        bulkhead=Bulkhead(Clock()),
        server=server,
        pods=view.pod_collection,
        snapshot=Snapshot,
        may_act=lambda: True,
        on_change=changes.notify,
        clock=clock,
    )
    cache = JobCache(TRAININGJOB, server, view, clock, Bulkhead(Clock()))
    scale_outs = ScaleOuts(
        KindContext(
            cluster=context, client=cache.client, wrote=cache.wrote, state=cache.state, namesakes=cache.namesakes
        )
    )
    try:
        assert await scale_outs.gone(trainingjob_state(trainingjob()))
        async with running(scale_outs.follower.run):
            await create_crds(server)
            await wakeup.wait()  # They are followed.
        assert await scale_outs.gone(trainingjob_state(trainingjob()))
    finally:
        await server.close()


def _failed_once(job: SupervisedJob) -> bool:
    growth = job.decision.growth
    return growth is not None and growth.failed >= 1 and not growth.workers
