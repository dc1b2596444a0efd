"""TrainingJobs of one test's namespace, the stand-in operator, and those parts of a supervisor that look after them."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from servicekit.clock import Clock
from servicekit.kubernetes.collection import Selection
from servicekit.kubernetes.server import ApiServer
from supervisor.cluster.view import ClusterView
from supervisor.domain.ids import JobName, cluster_job
from supervisor.domain.job import SupervisedJob
from supervisor.jobs.trainingjob.watch import TrainingJobWatch
from supervisor.store.sqlite import SqliteStore
from tests.controlplane.controlplane_api import Api, until
from tests.controlplane.controlplane_namespace import OWNER_LABEL, Namespace
from tests.controlplane.controlplane_running import Cluster
from tests.controlplane.operator.operator_jobs import Jobs
from tests.controlplane.store.store_cluster import RULES
from tests.supervisor.store_behaviour import opened
from tests.supervisor.trainingjob_objects import LABELS, OPTED_IN, spec

Task = Callable[[], Coroutine[Any, Any, None]]


class ElasticJobs(Jobs):
    """Jobs as Arena would make them, on the nodes of the test's namespace."""

    async def submit(
        self, name: str, workers: int, *, annotations: Mapping[str, str] | None = None, **asked: Any
    ) -> None:
        """Make a job that may run on two workers, with that in its spec's workers or command."""
        body = spec(workers, **asked)
        for role in body["etReplicaSpecs"].values():
            role["template"]["spec"]["nodeSelector"] = {OWNER_LABEL: self.namespace.name}
        self.edl(name).mkdir(parents=True)
        await self.namespace.runs_commands(f"{name}-launcher", EDL=str(self.edl(name)))
        await self._api.create(
            f"{self._path}/trainingjobs",
            {
                "apiVersion": "kai.alibabacloud.com/v1alpha1",
                "kind": "TrainingJob",
                "metadata": {"name": name, "annotations": dict(OPTED_IN if annotations is None else annotations)},
                "spec": body,
            },
        )

    async def annotations(self, name: str) -> dict[str, str]:
        """Of a job."""
        return dict((await self.get(name))["metadata"].get("annotations", {}))


@dataclass(frozen=True, slots=True)
class World:
    """What a supervisor knows of the jobs, as the account that it has."""

    namespace: Namespace
    store: SqliteStore
    view: ClusterView
    watch: TrainingJobWatch

    def name(self, job: str) -> JobName:
        """As the supervisor knows it."""
        return cluster_job(self.namespace.name, "trainingjob", job)

    def known(self, job: str) -> SupervisedJob | None:
        """What is stored of it."""
        return self.store.snapshot().jobs.get(self.name(job))

    async def appears(self, name: str) -> SupervisedJob:
        """What is stored of a job, once anything is."""
        return await self.job(name, lambda _: True, "is known")

    async def job(self, name: str, condition: Callable[[SupervisedJob], bool], what: str) -> SupervisedJob:
        """What is stored of a job, once it fulfils a condition."""

        async def fulfilled() -> SupervisedJob | None:
            known = self.known(name)
            return known if known is not None and condition(known) else None

        found = await until(fulfilled, f"{name} {what}; it is {self.known(name)}")
        assert found is not None
        return found

    async def forgotten(self, name: str) -> None:
        """Returns when nothing is stored of a job."""

        async def missing() -> bool:
            return self.known(name) is None

        await until(missing, f"{name} is forgotten")


@asynccontextmanager
async def running(*tasks: Task) -> AsyncIterator[None]:
    """Runs tasks without end; one that ends nevertheless fails the test."""
    begun = [asyncio.create_task(task()) for task in tasks]
    try:
        yield
    finally:
        ended = [task for task in begun if task.done()]
        for task in begun:
            task.cancel()
        await asyncio.gather(*begun, return_exceptions=True)
    assert not [task.exception() for task in ended]


async def connected(cluster: Cluster, namespace: Namespace, directory: Path) -> ApiServer:
    """As an account that may do just what the supervisor may."""
    path = directory / f"supervisor.{namespace.name}.kubeconfig"
    if not path.exists():
        await namespace.account("supervisor", cluster_rules=RULES)
        await namespace.kubeconfig("supervisor", path)
    assert cluster.kubeconfig != path
    return await ApiServer.connect(str(path), 10.0)


@asynccontextmanager
async def watching(
    cluster: Cluster, namespace: Namespace, directory: Path, *, undefined_seconds: float = 10.0
) -> AsyncIterator[World]:
    """Has observed what is so, and nothing done about it."""
    async with AsyncExitStack() as stack:
        server = await connected(cluster, namespace, directory)
        stack.push_async_callback(server.close)
        store = await stack.enter_async_context(opened(lambda: SqliteStore.open(directory / "store.sqlite")))
        clock = Clock()
        view = ClusterView(server, LABELS, clock, lambda: None)
        watch = TrainingJobWatch(server, view, clock, Selection(namespace=namespace.name), undefined_seconds)
        for follower in view.followers:
            await follower.first()
        await watch.first()
        tasks: list[Task] = [follower.run for follower in view.followers]
        tasks += [watch.follow, lambda: watch.observe(store), lambda: watch.heed(store)]
        await stack.enter_async_context(running(*tasks))
        yield World(namespace, store, view, watch)


def elastic(api: Api, namespace: Namespace, directory: Path) -> ElasticJobs:
    """The jobs of a namespace."""
    return ElasticJobs(api, namespace, directory)
