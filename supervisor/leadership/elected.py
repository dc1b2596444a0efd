"""One supervisor of several, as the Lease decides."""

import secrets
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Self

from servicekit.clock import Clock
from servicekit.kubernetes.election import Election, LeaseLostError, Terms
from servicekit.kubernetes.errors import ApiError, ConfigurationError
from servicekit.kubernetes.objects import ObjectKey
from servicekit.kubernetes.server import ApiServer
from supervisor.leadership.interface import LeadershipError, LeadershipLost
from supervisor.leadership.label import LeaderLabel

_ANSWERED_WITHIN = 2 / 3
"""Of the lease's duration: a renewal that takes longer leaves no time for another one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionOptions:
    """Whom to ask, and for what.

    `kubeconfig` is a file that names the cluster; without, it is this pod's own. `namespace` is the lease's, empty for
    the configuration's own. `pod` is this process's, empty outside of a pod.
    """

    kubeconfig: str | None
    namespace: str
    lease: str
    seconds: int
    pod: str


class ElectedLeadership:
    """See `supervisor.leadership.interface.Leadership`. Open with `open`, run its tasks, end with `close`."""

    def __init__(
        self, server: ApiServer, options: ElectionOptions, clock: Clock, highest: Callable[[], Awaitable[int]]
    ) -> None:
        terms = Terms(
            namespace=options.namespace or server.namespace,
            name=options.lease,
            identity=f"{options.pod or 'supervisor'}_{secrets.token_hex(8)}",
            seconds=options.seconds,
        )
        self._server = server
        self._election = Election(server, terms, clock, highest)
        own = ObjectKey(server.namespace, options.pod)
        self._label = LeaderLabel(server, own, self, clock) if options.pod else None

    @classmethod
    async def open(cls, options: ElectionOptions, clock: Clock, highest: Callable[[], Awaitable[int]]) -> Self:
        """Looks who leads; waits for an API server that is away. `highest` is the highest epoch of all that is stored.

        Raises:
            LeadershipError: The lease may not be read.
        """
        try:
            server = await ApiServer.connect(options.kubeconfig, options.seconds * _ANSWERED_WITHIN)
        except ConfigurationError as error:
            raise LeadershipError(str(error)) from error
        elected = cls(server, options, clock, highest)
        try:
            await elected._election.first()
        except BaseException as error:
            await server.close()
            if isinstance(error, ApiError):
                raise LeadershipError(f"cannot read the lease {options.lease}: {error}") from error
            raise
        return elected

    def may_act(self) -> bool:
        """See `Leadership`."""
        return self._election.certain

    async def gained(self) -> int:
        """Returns once this supervisor leads: its epoch."""
        return await self._election.gained()

    @property
    def tasks(self) -> Mapping[str, Callable[[], Coroutine[Any, Any, None]]]:
        """Root tasks, by name; the lease's raises LeadershipLost."""
        return {"lease.watch": self._election.follow, "lease": self._run}

    @property
    def leading(self) -> Mapping[str, Callable[[], Coroutine[Any, Any, None]]]:
        """Root tasks of the leader."""
        return {} if self._label is None else {"leader.label": self._label.run}

    async def _run(self) -> None:
        try:
            await self._election.run()
        except LeaseLostError as error:
            raise LeadershipLost(str(error)) from error

    async def close(self) -> None:
        """Lets the next one lead: call it when nothing more will be done here."""
        await self._election.release()
        await self._server.close()
