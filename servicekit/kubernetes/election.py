"""Leader election: of several processes, the holder of a Lease leads.

A process takes the Lease by compare and swap. It takes it from another holder only when, by its own monotonic clock, it
has seen no renewal for the whole duration. The holder counts the duration from the start of its renewal request, which
is before others can see the renewal. So its time ends first, whatever the clocks of the machines say.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

import structlog

from servicekit.bulkhead import Bulkhead, ProcessFault
from servicekit.clock import Clock
from servicekit.faults import Fault
from servicekit.kubernetes import lease
from servicekit.kubernetes.cache import Cache
from servicekit.kubernetes.client import ResourceClient, Selection
from servicekit.kubernetes.errors import ApiError, ConflictError, NotFoundError
from servicekit.kubernetes.lease import LEASES, Lease
from servicekit.kubernetes.objects import ObjectKey
from servicekit.kubernetes.reflector import Reflector
from servicekit.kubernetes.server import ApiServer
from servicekit.reconcile import Wakeup

RENEWALS = 4
"""Per duration: two may fail, or one may take two thirds of it, before the lease is no longer certain."""

_log = structlog.get_logger()


class LeaseLostError(ProcessFault):
    """Another process leads. This process has to end, and to start again as a candidate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionConfig:
    """The Lease and this candidate.

    Attributes:
        identity: Unique: no two processes ever have the same.
        seconds: The duration of the Lease.
    """

    namespace: str
    name: str
    identity: str
    seconds: int


class Election:
    """A candidate. The caller runs `follow` and `run`.

    `gained` returns once it leads, `certain` tells whether it leads now.

    Args:
        server: A connection of its own: other requests must not delay a renewal, and a time-out must leave room for a
            second attempt.
        config: The Lease and this candidate.
        clock: Only its monotonic instants matter.
        highest: Called before the lease is taken; returns the highest epoch with which anything was written, 0 for
            none. It may raise ApiError.
        bulkhead: For the cache of the Lease.
    """

    def __init__(
        self,
        server: ApiServer,
        config: ElectionConfig,
        clock: Clock,
        highest: Callable[[], Awaitable[int]],
        bulkhead: Bulkhead,
    ) -> None:
        selection = Selection(namespace=config.namespace, fields=f"metadata.name={config.name}")
        self._leases = ResourceClient(server, LEASES, lease.read, selection)
        self._cache: Cache[Lease] = Cache("leases", self._lease_changed, bulkhead)
        self._reflector = Reflector(self._leases, self._cache, clock)
        self._key = ObjectKey(config.namespace, config.name)
        self._config = config
        self._clock = clock
        self._highest = highest
        self._fault = Fault("lease", clock)
        self._wakeup = Wakeup()
        self._changed_at = clock.monotonic()
        self._valid_until = -math.inf
        self._transitions: int | None = None
        self._gained = asyncio.Event()

    @property
    def certain(self) -> bool:
        """Whether this process holds the lease at this moment, and no other can."""
        return self._clock.monotonic() < self._valid_until

    async def first(self) -> None:
        """Reads the lease; waits while the API server is unavailable.

        Raises:
            ApiError: The lease may not be read.
        """
        await self._reflector.first()

    async def follow(self) -> None:
        """Root task: watches the lease, so that a change of its holder is seen at once."""
        await self._reflector.run()

    async def gained(self) -> int:
        """Waits until this process leads; returns its epoch, which is higher than that of every leader before."""
        await self._gained.wait()
        return self._epoch()

    async def run(self) -> None:
        """Root task: takes the lease as soon as it may be taken, and renews it.

        Raises:
            LeaseLostError: Another process has taken it.
        """
        await self._attempt(self._acquire)
        _log.info("lease.gained", lease=self._config.name, epoch=self._epoch())
        self._gained.set()
        while True:
            await self._wakeup.wait(self._pause)
            await self._attempt(self._renew)

    async def release(self) -> None:
        """Releases the lease, so that the next leader need not wait. Errors are ignored: the process is ending."""
        self._valid_until = -math.inf
        with suppress(ApiError):
            try:
                await self._release()
            except ConflictError:  # A renewal that was cut off has been made after all.
                await self._refresh()
                await self._release()

    async def _attempt(self, step: Callable[[], Awaitable[None]]) -> None:
        """Repeats a step until it succeeds."""
        while not await self._succeeded(step):
            await self._wakeup.wait(self._pause)

    async def _succeeded(self, step: Callable[[], Awaitable[None]]) -> bool:
        try:
            try:
                await step()
            except (ConflictError, NotFoundError):
                await self._refresh()
                return False
        except ApiError as error:
            self._fault.failed(str(error))
            # A process that could not read the lease has not seen that nothing changed; the holder could not renew it
            # either.
            self._changed_at = self._clock.monotonic()
            return False
        self._fault.recovered()
        return True

    async def _acquire(self) -> None:
        """Takes the lease, after waiting until it may be taken."""
        while (seconds := self._seconds_until_free()) > 0:
            await self._wakeup.wait(min(seconds, self._pause))
            await self._check_holder()
        present = self._present()
        transitions = max(self._next_transitions(present), await self._highest())
        begun = self._clock.monotonic()
        spec = lease.taken(self._config.identity, self._config.seconds, transitions, self._clock.now())
        if present is None:
            self._hold(await self._leases.create(self._key, {"spec": spec}), begun)
        else:
            self._hold(await self._leases.replace(present, "spec", spec), begun)

    async def _check_holder(self) -> None:
        """Reads the lease.

        If that takes long, the holder may have failed to renew it too, so the duration starts again.

        Otherwise all candidates would take the lease in the moment in which the API server is available again.
        """
        begun = self._clock.monotonic()
        await self._refresh()
        if self._clock.monotonic() - begun > self._pause:
            self._changed_at = self._clock.monotonic()

    async def _renew(self) -> None:
        """Renews the lease, or creates it again if a person has deleted it.

        Raises:
            LeaseLostError: Another process has taken it.
        """
        present = self._present()
        self._check_held(present)
        begun, now = self._clock.monotonic(), self._clock.now()
        if present is None:
            spec = lease.taken(self._config.identity, self._config.seconds, self._transitions or 0, now)
            self._hold(await self._leases.create(self._key, {"spec": spec}), begun)
        else:
            held = lease.renewed(present.spec, self._config.seconds, now)
            self._hold(await self._leases.replace(present, "spec", held), begun)

    def _check_held(self, present: Lease | None) -> None:
        if present is None:
            return
        spec = present.spec
        if spec.holder != self._config.identity or spec.transitions != self._transitions:
            self._valid_until = -math.inf
            raise LeaseLostError(f"{spec.holder or 'nobody'} holds the lease {self._config.name} now")

    def _seconds_until_free(self) -> float:
        """Returns after how many seconds the lease may be taken, unless it changes until then."""
        present = self._present()
        if present is not None and present.spec.holder in ("", self._config.identity):
            return 0.0  # Released, or taken by an attempt of ours whose answer was lost.
        # A lease that is missing may have been deleted while its holder still counts on it.
        seconds = self._config.seconds if present is None else max(self._config.seconds, present.spec.seconds)
        return self._changed_at + seconds - self._clock.monotonic()

    def _next_transitions(self, present: Lease | None) -> int:
        if present is None:
            return 0
        own = present.spec.holder == self._config.identity
        return present.spec.transitions if own else present.spec.transitions + 1

    def _hold(self, held: Lease, begun: float) -> None:
        self._cache.record_write(held)
        self._transitions = held.spec.transitions
        self._valid_until = begun + self._config.seconds

    async def _release(self) -> None:
        present = self._present()
        if present is not None and present.spec.holder == self._config.identity:
            spec = lease.released(present.spec, self._clock.now())
            self._cache.record_write(await self._leases.replace(present, "spec", spec))
            _log.info("lease.released", lease=self._config.name)

    async def _refresh(self) -> None:
        """Reads the lease, as the watch may be late."""
        try:
            self._cache.record_write(await self._leases.get(self._key))
        except NotFoundError:
            if (known := self._present()) is not None:
                self._cache.record_deletion(known)

    def _present(self) -> Lease | None:
        return self._cache.objects.get(self._key)

    def _epoch(self) -> int:
        if self._transitions is None:
            raise AssertionError("only a leader has an epoch")
        return self._transitions + 1

    @property
    def _pause(self) -> float:
        return self._config.seconds / RENEWALS

    def _lease_changed(self, _before: Lease | None, after: Lease | None) -> None:
        self._changed_at = self._clock.monotonic()
        if after is None or after.spec.holder != self._config.identity:  # Not this process's own renewal.
            self._wakeup.set()
