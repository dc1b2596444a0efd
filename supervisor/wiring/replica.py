"""Runs a replica of the supervisor on a cluster: it keeps its caches up to date, and serves once it leads."""

import os
import socket
from asyncio import Event
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Self

from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.kubernetes.server import ApiServer, always
from servicekit.lifecycle import run_tasks
from servicekit.reconcile import Notifier
from servicekit.tls import ServerCertificate
from supervisor.jobs.registry import RESOURCES
from supervisor.leadership import elected
from supervisor.leadership.elected import ElectedLeadership
from supervisor.observability.events.api import ClusterReferenceResolver
from supervisor.observability.events.recorder import EventRecorder
from supervisor.refusals import Refusals
from supervisor.settings import Settings
from supervisor.store import kubernetes
from supervisor.store.kubernetes import KubernetesStore
from supervisor.webhook.injection import NoticedNodes
from supervisor.webhook.mutation import PodInjection
from supervisor.webhook.server import Reviewed, Webhook
from supervisor.wiring.cluster import ClusterDependencies, Tasks, WatchedCluster


@dataclass(slots=True)
class WriteGuard:
    """Allows the connections of a replica to write while `certain` returns True: before it leads, that is always."""

    certain: Callable[[], bool] = always

    def may_write(self) -> bool:
        return self.certain()


@dataclass(frozen=True, slots=True)
class SupervisorReplica:
    """The components of a replica before it leads.

    `elected` is None without leader election, `events` is None if Kubernetes Events are off. `may_act` returns whether
    no other supervisor can lead now.
    """

    store: KubernetesStore
    cluster: WatchedCluster
    changes: Notifier
    clock: Clock
    elected: ElectedLeadership | None
    may_act: Callable[[], bool]
    events: EventRecorder | None
    bulkhead: Bulkhead
    guard: WriteGuard

    @classmethod
    @asynccontextmanager
    async def open(cls, settings: Settings, clock: Clock, bulkhead: Bulkhead) -> AsyncIterator[Self]:
        """Connects and lists everything; waits for an unavailable API server.

        Raises:
            StoreError: There is no cluster to connect to, it has no such resources, or they may not be read.
            LeadershipError: The lease may not be read.
        """
        kubeconfig = os.environ.get("KUBECONFIG")  # The usual name, without our prefix.
        guard, changes = WriteGuard(), Notifier()
        async with AsyncExitStack() as stack:
            store = await KubernetesStore.open(
                kubernetes.KubernetesStoreOptions(
                    kubeconfig=kubeconfig,
                    namespace=settings.namespace,
                    timeout_seconds=settings.store_timeout_seconds,
                    kinds=RESOURCES,
                    may_write=guard.may_write,
                ),
                clock,
                bulkhead,
            )
            stack.push_async_callback(store.close)
            candidate = None
            if settings.leader_election:
                options = elected.ElectionOptions(
                    kubeconfig=kubeconfig,
                    namespace=settings.namespace,
                    lease=settings.lease_name,
                    seconds=settings.lease_seconds,
                    pod=settings.pod_name,
                )
                candidate = await ElectedLeadership.open(options, clock, store.highest_epoch, bulkhead)
                stack.push_async_callback(candidate.close)
            may_act = candidate.may_act if candidate else always
            cluster = await WatchedCluster.open(
                ClusterDependencies(
                    kubeconfig=kubeconfig,
                    settings=settings,
                    clock=clock,
                    store=store,
                    may_act=may_act,
                    may_write=guard.may_write,
                    on_change=changes.notify,
                    bulkhead=bulkhead,
                )
            )
            stack.push_async_callback(cluster.server.close)
            events = None
            if settings.kubernetes_events:
                server = await ApiServer.connect(kubeconfig, settings.store_timeout_seconds, may_write=guard.may_write)
                stack.push_async_callback(server.close)
                objects = ClusterReferenceResolver(
                    store, cluster.view, cluster.placements, cluster.jobs.owner_of, cluster.jobs.is_released
                )
                events = EventRecorder(server, objects, settings.pod_name or socket.gethostname(), clock, bulkhead)
            yield cls(store, cluster, changes, clock, candidate, may_act, events, bulkhead, guard)

    def webhook(
        self,
        settings: Settings,
        ca: Callable[[], str],
        certificate: ServerCertificate | None,
        refusals: Refusals,
        on_review: Reviewed | None,
    ) -> Tasks:
        """The root task of the webhook, if there is one; `ca` returns the CA that pods are given."""
        if settings.webhook is None:
            return {}
        nodes = NoticedNodes(
            self.store.snapshot,
            lambda: self.cluster.node_objects,
            lambda: self.cluster.nodes_version,
            settings,
            self.clock.now,
        )

        def injection() -> PodInjection:
            """The present injection for a new pod."""
            return PodInjection(
                address=settings.public_address,
                ca=ca(),
                audience=settings.token_audience,
                avoid=nodes.now(),
            )

        server = Webhook(
            address=settings.webhook,
            certificate=certificate,
            refusals=refusals,
            injection=injection,
            bulkhead=self.bulkhead,
            on_review=on_review,
        )
        return {"webhook": server.run}

    async def serve(self, tasks: Callable[[], Tasks], stop: Event, beside: Tasks) -> None:
        """Stands by until this replica leads, then runs the leader's tasks; returns when `stop` is set.

        Args:
            tasks: Returns the root tasks of the leader.
            stop: Ends all tasks.
            beside: The root tasks that it runs, leading or not.

        Raises:
            RootTaskEnded: See `run_tasks`; its cause is LeadershipLost if another replica leads now.
        """

        async def lead() -> None:
            epoch = self.store.known_epoch or 1
            if self.elected is not None:
                epoch = await self.elected.election.gained()
            await self.cluster.follow_its_clock()
            self.store.lead(epoch)
            self.guard.certain = self.may_act
            await run_tasks({**tasks(), **(self.elected.leader_tasks if self.elected else {})}, Event())

        candidacy = self.elected.tasks if self.elected else {}
        await run_tasks(
            {"store": self.store.run, **self.cluster.standby_tasks, **candidacy, **beside, "leader": lead}, stop
        )
