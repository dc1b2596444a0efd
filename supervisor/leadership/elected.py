"""Leadership by a Kubernetes Lease."""

import secrets
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Self

from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.kubernetes.election import Election, ElectionConfig, LeaseLostError
from servicekit.kubernetes.errors import ApiError, ConfigurationError
from servicekit.kubernetes.objects import ObjectKey
from servicekit.kubernetes.server import ApiServer
from supervisor.leadership.interface import LeadershipError, LeadershipLost
from supervisor.leadership.label import LeaderLabel

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
    """Implements `Leadership`. Create it with `open`, run its tasks, and end with `close`."""

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
        self._election = Election(server, config, clock, highest, bulkhead)
        own = ObjectKey(server.namespace, options.pod)
        self._label = LeaderLabel(server, own, self, clock, bulkhead) if options.pod else None

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
            await elected._election.first()
        except BaseException as error:
            await server.close()
            if isinstance(error, ApiError):
                raise LeadershipError(f"cannot read the lease {options.lease}: {error}") from error
            raise
        return elected

    def may_act(self) -> bool:
        return self._election.certain

    async def gained(self) -> int:
        """Waits until this supervisor leads; returns its epoch."""
        return await self._election.gained()

    @property
    def tasks(self) -> Mapping[str, Callable[[], Coroutine[Any, Any, None]]]:
        """The root tasks by name; `lease` raises LeadershipLost."""
        return {"lease.watch": self._election.follow, "lease": self._run}

    @property
    def leader_tasks(self) -> Mapping[str, Callable[[], Coroutine[Any, Any, None]]]:
        """The root tasks that run only while this supervisor leads."""
        return {} if self._label is None else {"leader.label": self._label.run}

    async def _run(self) -> None:
        try:
            await self._election.run()
        except LeaseLostError as error:
            raise LeadershipLost(str(error)) from error

    async def close(self) -> None:
        """Releases the lease for the next leader. Call it when this supervisor has stopped acting."""
        await self._election.release()
        await self._server.close()
