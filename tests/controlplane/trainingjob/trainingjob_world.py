"""TrainingJobs of one test's namespace, the stand-in operator, and the parts of a supervisor that handle them."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.kubernetes.server import ApiServer
from servicekit.reconcile import Notifier
from supervisor.cluster.view import ClusterView
from supervisor.control.facts import Facts
from supervisor.control.loop import Control, ControlDependencies, PlanRequests
from supervisor.decide.grant import Grant
from supervisor.decide.policy import Policy
from supervisor.decide.registration import acknowledge
from supervisor.domain.capacity import UNKNOWN_MACHINE, Machine, Placement
from supervisor.domain.ids import Host, JobName, cluster_job
from supervisor.domain.job import Acknowledgement, AcknowledgementKind, Phase, SupervisedJob
from supervisor.domain.notice import NoticeState, Subject, SubjectKind
from supervisor.domain.order import Worker
from supervisor.fanout.members import MemberStreams
from supervisor.fanout.processes import Processes
from supervisor.fanout.ranks import RankStates, Saves
from supervisor.ingest.agent_registry import AgentRegistry, UnconfirmedNotices
from supervisor.ingest.cluster.jobs import JobReconciler
from supervisor.jobs.actuator import Actuator, ActuatorDependencies
from supervisor.jobs.cache import ClusterJobs, JobCache, connect
from supervisor.jobs.kind import ClusterContext
from supervisor.jobs.pods import STOP_PORT
from supervisor.jobs.queues.kueue.workloads import Workloads
from supervisor.jobs.registry import POD_LABELS
from supervisor.jobs.trainingjob.kind import TRAININGJOB
from supervisor.store.sqlite import SqliteStore
from tests.controlplane.operator.operator_jobs import OperatorJobs
from tests.supervisor.decide.decide_builders import notice
from tests.supervisor.jobs.trainingjob.trainingjob_objects import OPTED_IN, spec
from tests.supervisor.store.store_behaviour import opened
from tests.testkit.controlplane.api import Api
from tests.testkit.controlplane.installed import RULES
from tests.testkit.controlplane.namespace import OWNER_LABEL, Namespace
from tests.testkit.controlplane.running import RunningCluster
from tests.testkit.waiting import until

_ORDINARY = {"trainingjob.test/ordinary": "true"}

_GROWTH = {"growth_delay_seconds": 0.3}

Task = Callable[[], Coroutine[Any, Any, None]]


class ElasticJobs(OperatorJobs):
    """Jobs as Arena would make them, on the nodes of the test's namespace."""

    launchers: Mapping[str, str] = {}

    async def submit(
        self, name: str, workers: int, *, annotations: Mapping[str, str] | None = None, **asked: Any
    ) -> None:
        """Make a job that may run on two workers, with that in its spec's workers or command."""
        body = spec(workers, **asked)
        for role, part in body["etReplicaSpecs"].items():
            own = {} if role == "worker" else self.launchers
            part["template"]["spec"]["nodeSelector"] = {OWNER_LABEL: self.namespace.name, **own}
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

    async def nodes(self, count: int) -> None:
        """So many nodes with room for one worker each, and another one for launchers, which stays as they go."""
        for number in range(count):
            await self.namespace.node(f"node-{number}", gpus=1)
        await self.namespace.node("ordinary", gpus=0, labels=_ORDINARY)
        self.launchers = _ORDINARY

    async def annotations(self, name: str) -> dict[str, str]:
        return dict((await self.get(name))["metadata"].get("annotations", {}))


@dataclass(frozen=True, slots=True)
class TrainingJobWorld:
    """A supervisor's knowledge of the jobs, read with its own account."""

    namespace: Namespace
    store: SqliteStore
    view: ClusterView
    jobs: ClusterJobs
    reconciler: JobReconciler
    changes: Notifier

    def name(self, job: str) -> JobName:
        return cluster_job(self.namespace.name, "trainingjob", job)

    def known(self, job: str) -> SupervisedJob | None:
        return self.store.snapshot().jobs.get(self.name(job))

    async def appears(self, name: str) -> SupervisedJob:
        return await self.job(name, lambda _: True, "is known")

    async def job(self, name: str, condition: Callable[[SupervisedJob], bool], what: str) -> SupervisedJob:
        """Return the stored job as soon as it fulfils a condition."""

        async def fulfilled() -> SupervisedJob | None:
            known = self.known(name)
            return known if known is not None and condition(known) else None

        found = await until(fulfilled, f"{name} {what}; it is {self.known(name)}")
        assert found is not None
        return found

    async def forgotten(self, name: str) -> None:
        async def missing() -> bool:
            return self.known(name) is None

        await until(missing, f"{name} is forgotten")


class TrainingJobAround:
    """The placements of the jobs' pods, and the capacity that a test grants."""

    nodes_version = 0

    def __init__(self, jobs: ClusterJobs) -> None:
        self._jobs = jobs
        self._granted: dict[JobName, Grant] = {}
        self._room: dict[JobName, int] = {}

    @property
    def node_objects(self) -> Mapping[Host, str]:
        return {}

    def grant(self, name: JobName, hosts: frozenset[Host]) -> None:
        self._granted[name] = Grant(hosts)

    def room(self, name: JobName, workers: int) -> None:
        """Let a job that runs have so many more, as far as that does no harm."""
        self._room[name] = workers

    def placements(self, name: JobName) -> Mapping[Host, Placement]:
        return self._jobs.placements(name)

    def machine(self, _node: Host) -> Machine:
        return UNKNOWN_MACHINE

    def granted(
        self, _jobs: Sequence[SupervisedJob], _noticed: Collection[Host], _avoided: Collection[Host]
    ) -> Mapping[JobName, Grant]:
        names = self._granted.keys() | self._room.keys()
        return {name: replace(self._granted.get(name, Grant()), more=self._more(name)) for name in names}

    def _more(self, name: JobName) -> int:
        return min(self._room.get(name, 0), self._jobs.growable(name))


@dataclass(frozen=True, slots=True)
class Supervision:
    """The parts of a supervisor that decide about TrainingJobs and act on them. Other features are left out."""

    world: TrainingJobWorld
    around: TrainingJobAround

    async def notices(self, node: str, *, left: float = 300.0) -> None:
        subject = Subject(SubjectKind.NODE, node, f"machine of {node}")
        told = replace(notice(1), subject=subject, first_seen=time.time(), deadline=time.time() + left)
        await self.world.store.put_notice(told.id, lambda _: told)

    async def spared(self) -> None:
        for known in self.world.store.snapshot().notices.values():
            ended = replace(known, state=NoticeState.WITHDRAWN, ended_at=time.time(), revision=known.revision + 1)
            await self.world.store.put_notice(known.id, lambda _, ended=ended: ended)  # type: ignore[misc]

    async def answers(self, job: str) -> None:
        """Rank 0 has saved its checkpoint, once it is told to stop."""
        stopping = await self.world.job(job, lambda known: known.decision.stop is not None, "is to stop")
        stop = stopping.decision.stop
        assert stop is not None
        answer = Acknowledgement(
            run=stop.run, generation=stop.generation, kind=AcknowledgementKind.LEFT, step=None, at=time.time()
        )
        worker = Worker("process", stopping.id, stop.run, Host(f"{job}-worker-0"), 0)
        await self.world.store.put_job(stopping.name, lambda known: acknowledge(known, worker, answer))

    def grant(self, job: str, workers: int) -> None:
        hosts = frozenset(Host(f"{job}-worker-{number}") for number in range(workers))
        self.around.grant(self.world.name(job), hosts)
        self.world.changes.notify()

    def room(self, job: str, workers: int) -> None:
        self.around.room(self.world.name(job), workers)
        self.world.changes.notify()

    async def phase(self, job: str, phase: Phase, run: int | None = None) -> SupervisedJob:
        def reached(known: SupervisedJob) -> bool:
            decision, observed = known.decision, known.observed
            in_place = observed.applied >= decision.generation or known.over or not decision.hosts
            return decision.phase is phase and in_place and run in (None, observed.run)

        return await self.world.job(job, reached, f"is {phase}")


@asynccontextmanager
async def supervising(
    cluster: RunningCluster, namespace: Namespace, directory: Path, *, stop_port: int = STOP_PORT, **policy: Any
) -> AsyncIterator[Supervision]:
    rules = Policy(
        **{"window_seconds": 0.2, "resume_delay_seconds": 0.1, "resume_backoff_seconds": 0.1, **_GROWTH, **policy}
    )
    # Longer than anybody waits here: what is held up by a command that never ends is not done in time.
    async with watching(cluster, namespace, directory, seconds=60.0) as world:
        clock, store, changes = Clock(), world.store, world.changes
        around = TrainingJobAround(world.jobs)
        agents = AgentRegistry(lambda: None, clock.now)
        facts = Facts(store, agents, UnconfirmedNotices(lambda: None, Clock()), rules, around, now=clock.now)
        requests = PlanRequests(changes.notify)
        processes = Processes(facts.directives, clock.now, Bulkhead(Clock()), requests.add)
        actuator = Actuator(
            ActuatorDependencies(
                bulkhead=Bulkhead(Clock()),
                jobs=world.jobs,
                pods=world.view.pod_collection,
                store=store,
                report=world.reconciler.in_place,
                may_act=lambda: True,
                connected=processes.hosts,
                clock=clock,
                cluster_now=clock.now,
                stop_port=stop_port,
            )
        )
        control = Control(
            ControlDependencies(
                bulkhead=Bulkhead(Clock()),
                store=store,
                facts=facts,
                processes=processes,
                ranks=RankStates(processes.workers, facts.agreement, requests.add),
                saves=Saves(),
                members=MemberStreams(store.snapshot().jobs.get, requests.add, Bulkhead(Clock())),
                adapter=actuator.carry_out,
                may_act=lambda: True,
                policy=rules,
                clock=clock,
                requests=requests,
                wakeup=changes.subscribe(),
            )
        )

        async def notify() -> None:
            version = 0
            while True:
                version = (await store.changed(version)).version
                changes.notify()

        leading = [task for kind in world.jobs for task in kind.actions.leader_tasks.values()]
        async with running(actuator.run, notify, control.run, *leading):
            yield Supervision(world, around)


@asynccontextmanager
async def running(*tasks: Task) -> AsyncIterator[None]:
    """Runs endless tasks. A task that ends nevertheless fails the test."""
    begun = [asyncio.create_task(task()) for task in tasks]
    try:
        yield
    finally:
        ended = [task for task in begun if task.done()]
        for task in begun:
            task.cancel()
        await asyncio.gather(*begun, return_exceptions=True)
    assert not [task.exception() for task in ended]


async def connected(cluster: RunningCluster, namespace: Namespace, directory: Path, seconds: float = 10.0) -> ApiServer:
    """As an account that may do just what the supervisor may."""
    path = directory / f"supervisor.{namespace.name}.kubeconfig"
    if not path.exists():
        await namespace.account("supervisor", cluster_rules=RULES)
        await namespace.kubeconfig("supervisor", path)
    assert cluster.kubeconfig != path
    return await ApiServer.connect(str(path), seconds)


@asynccontextmanager
async def watching(
    cluster: RunningCluster,
    namespace: Namespace,
    directory: Path,
    *,
    undefined_seconds: float = 10.0,
    seconds: float = 10.0,
) -> AsyncIterator[TrainingJobWorld]:
    async with AsyncExitStack() as stack:
        server = await connected(cluster, namespace, directory, seconds)
        stack.push_async_callback(server.close)
        store = await stack.enter_async_context(opened(lambda: SqliteStore.open(directory / "store.sqlite")))
        clock, changes = Clock(), Notifier()
        view = ClusterView(server, POD_LABELS, clock, changes.notify, Bulkhead(Clock()))
        context = ClusterContext(
            bulkhead=Bulkhead(Clock()),
            server=server,
            pods=view.pod_collection,
            snapshot=store.snapshot,
            may_act=lambda: True,
            on_change=changes.notify,
            clock=clock,
            namespaces=[namespace.name],
        )
        cache = JobCache(
            TRAININGJOB,
            server,
            view,
            clock,
            Bulkhead(Clock()),
            namespaces=[namespace.name],
            undefined_seconds=undefined_seconds,
        )
        jobs = ClusterJobs(
            [connect(cache.kind, cache, context, Workloads(server, clock, lambda _names: None, Bulkhead(Clock())))]
        )
        reconciler = JobReconciler(jobs, store, clock, Bulkhead(Clock()))
        for reflector in view.reflectors:
            await reflector.first()
        await cache.follower.first()
        tasks: list[Task] = [reflector.run for reflector in view.reflectors]
        tasks += [task for kind in jobs for task in kind.actions.standby_tasks.values()]
        tasks += [cache.follower.run, reconciler.run, reconciler.requeue]
        await stack.enter_async_context(running(*tasks))
        yield TrainingJobWorld(namespace, store, view, jobs, reconciler, changes)


def elastic(api: Api, namespace: Namespace, directory: Path) -> ElasticJobs:
    return ElasticJobs(api, namespace, directory)
