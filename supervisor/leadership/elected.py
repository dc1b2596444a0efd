"""Elects the leader by a Kubernetes Lease, and keeps the label by which the Service selects the leader's pod."""

import secrets
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import msgspec

from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.faults import Fault
from servicekit.kubernetes.client import Resource, ResourceClient, Selection
from servicekit.kubernetes.election import Election, ElectionConfig, LeaseLostError
from servicekit.kubernetes.errors import ApiError, ConfigurationError, ConflictError, NotFoundError
from servicekit.kubernetes.objects import Metadata, ObjectKey
from servicekit.kubernetes.server import ApiServer
from servicekit.reconcile import reconcile
from supervisor.leadership.errors import LeadershipError, LeadershipLost

LABEL = "job-supervisor.kube-ai.io/leader"
_LEADS = "true"
_INSTALLATION_LABELS = ("app.kubernetes.io/name", "app.kubernetes.io/instance")
"""Labels that all pods of one installation share."""

_PODS = Resource(group="", version="v1", kind="Pod", plural="pods", namespaced=True)
_CHECK_SECONDS = 10.0
"""The interval of checks: without the label the Service has no endpoint. Each check is two requests."""

_RETRY_SECONDS = 0.5

Tasks = Mapping[str, Callable[[], Coroutine[Any, Any, None]]]

_ANSWERED_WITHIN = 2 / 3
"""The time limit of a request, as a part of the lease's duration: a longer one leaves no time for a second attempt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionOptions:
    """The lease and the connection to its cluster.

    `kubeconfig` names the cluster; None stands for this pod's own. An empty `namespace` stands for the kubeconfig's.
    `pod` is the name of this pod, empty outside of a cluster. `seconds` is the duration of the lease.
    """

    kubeconfig: str | None
    namespace: str
    lease: str
    seconds: int
    pod: str


class ElectedLeadership:
    """A candidate for leadership. Create it with `open`, run its tasks, and end with `close`.

    Attributes:
        election: Tells when this supervisor leads.
        tasks: The root tasks by name; `lease` raises LeadershipLost.
        leader_tasks: The root tasks that run only while this supervisor leads.
    """

    def __init__(
        self,
        server: ApiServer,
        options: ElectionOptions,
        clock: Clock,
        highest: Callable[[], Awaitable[int]],
        bulkhead: Bulkhead,
    ) -> None:
        config = ElectionConfig(
            namespace=options.namespace or server.namespace,
            name=options.lease,
            identity=f"{options.pod or 'supervisor'}_{secrets.token_hex(8)}",
            seconds=options.seconds,
        )
        self._server = server
        self.election = Election(server, config, clock, highest, bulkhead)
        self.tasks: Tasks = {"lease.watch": self.election.follow, "lease": self._run}
        self.leader_tasks: Tasks = {}
        if options.pod:
            own = ObjectKey(server.namespace, options.pod)
            self.leader_tasks = {"leader.label": LeaderLabel(server, own, self.may_act, clock, bulkhead).run}

    @classmethod
    async def open(
        cls, options: ElectionOptions, clock: Clock, highest: Callable[[], Awaitable[int]], bulkhead: Bulkhead
    ) -> Self:
        """Reads the lease; waits for an unavailable API server. `highest` returns the highest epoch in the store.

        Raises:
            LeadershipError: The lease may not be read.
        """
        try:
            server = await ApiServer.connect(options.kubeconfig, options.seconds * _ANSWERED_WITHIN)
        except ConfigurationError as error:
            raise LeadershipError(str(error)) from error
        elected = cls(server, options, clock, highest, bulkhead)
        try:
            await elected.election.first()
        except BaseException as error:
            await server.close()
            if isinstance(error, ApiError):
                raise LeadershipError(f"cannot read the lease {options.lease}: {error}") from error
            raise
        return elected

    def may_act(self) -> bool:
        """Returns whether no other supervisor can lead now. Ask right before an action that no epoch guards."""
        return self.election.certain

    async def _run(self) -> None:
        try:
            await self.election.run()
        except LeaseLostError as error:
            raise LeadershipLost(str(error)) from error

    async def close(self) -> None:
        """Releases the lease for the next leader. Call it when this supervisor has stopped acting."""
        await self.election.release()
        await self._server.close()


class _LeaderPodMetadata(Metadata, frozen=True, rename="camel"):
    labels: Mapping[str, str] = {}


class _LeaderPod(msgspec.Struct, frozen=True):
    metadata: _LeaderPodMetadata


class LeaderLabel:
    """Sets the label on `own`, the pod of this process, and removes it from the other pods of the installation."""

    def __init__(
        self, server: ApiServer, own: ObjectKey, may_act: Callable[[], bool], clock: Clock, bulkhead: Bulkhead
    ) -> None:
        self._bulkhead = bulkhead
        self._server = server
        self._own = own
        self._may_act = may_act
        self._fault = Fault("leader label", clock)

    async def run(self) -> None:
        """Root task of the leader; removes the label when it ends."""
        try:
            await reconcile("leader.label", self.once, self._bulkhead)
        finally:
            with suppress(ApiError):
                await self._mark(await self._pods().get(self._own), None)

    async def once(self) -> float:
        """Makes this pod the only one that has the label; returns the seconds until the next check."""
        if not self._may_act():
            return _RETRY_SECONDS
        try:
            own = await self._pods().get(self._own)
            if own.metadata.labels.get(LABEL) != _LEADS:
                await self._mark(own, _LEADS)
            # A leader that was killed keeps its label, and its container may have restarted.
            shared = {name: value for name, value in own.metadata.labels.items() if name in _INSTALLATION_LABELS}
            labels = {LABEL: _LEADS, **shared}
            others = await self._pods(",".join(f"{name}={value}" for name, value in labels.items())).list()
            for other in others.objects:
                if other.metadata.key != self._own:
                    with suppress(NotFoundError, ConflictError):
                        await self._mark(other, None)
        except ApiError as error:
            self._fault.failed(str(error))
            return _RETRY_SECONDS
        self._fault.recovered()
        return _CHECK_SECONDS

    async def _mark(self, pod: _LeaderPod, value: str | None) -> None:
        await self._pods().merge(pod, {}, metadata={"labels": {LABEL: value}})

    def _pods(self, labels: str = "") -> ResourceClient[_LeaderPod]:
        selection = Selection(namespace=self._own.namespace, labels=labels)
        return ResourceClient(self._server, _PODS, partial(msgspec.json.decode, type=_LeaderPod), selection)
