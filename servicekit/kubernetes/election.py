"""One of several processes leads: whoever holds a Lease.

It is taken by comparing and swapping, and from a holder that is alive no sooner than a whole duration after its last
sign of life was seen here, by this process's own monotonic clock. The holder counts from the start of the request that
renewed it, which was before anybody could see it: so its time is over first, whatever the clocks of the machines say.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

import structlog

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
from servicekit.wakeup import Wakeup

RENEWALS = 4
"""In one duration: two may fail, or one take two thirds of it, before the lease is no longer certain."""

_log = structlog.get_logger()


class LeaseLostError(Exception):
    """Somebody else leads: end, and begin again as one who waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Which lease, as whom, and for how many seconds at a time. No two processes ever have the same `identity`."""

    namespace: str
    name: str
    identity: str
    seconds: int


class Election:
    """Run `follow` and `run`; `gained` tells when this process leads, and `certain` whether it does right now.

    Args:
        server: Of its own: what others ask must not delay a renewal, and a time-out must leave room for another one.
        terms: What is run for.
        clock: Only its monotonic side decides anything.
        highest: Asked before the lease is taken: the highest epoch that anything was written with, 0 for none. It may
            raise ApiError.
    """

    def __init__(self, server: ApiServer, terms: Terms, clock: Clock, highest: Callable[[], Awaitable[int]]) -> None:
        selection = Selection(namespace=terms.namespace, fields=f"metadata.name={terms.name}")
        self._leases = ResourceClient(server, LEASES, lease.read, selection)
        self._cache: Cache[Lease] = Cache(self._moved)
        self._reflector = Reflector(self._leases, self._cache, clock)
        self._key = ObjectKey(terms.namespace, terms.name)
        self._terms = terms
        self._clock = clock
        self._highest = highest
        self._fault = Fault("lease", clock)
        self._news = Wakeup()
        self._moved_at = clock.monotonic()
        self._valid_until = -math.inf
        self._transitions: int | None = None
        self._gained = asyncio.Event()

    @property
    def certain(self) -> bool:
        """Whether nobody else can hold the lease at this moment."""
        return self._clock.monotonic() < self._valid_until

    async def first(self) -> None:
        """Looks who leads; waits for an API server that is away.

        Raises:
            ApiError: It may not be looked at.
        """
        await self._reflector.first()

    async def follow(self) -> None:
        """Root task: sees the lease change hands at once."""
        await self._reflector.run()

    async def gained(self) -> int:
        """Returns once this process leads: its epoch, higher than that of everybody who ever led."""
        await self._gained.wait()
        return self._epoch()

    async def run(self) -> None:
        """Root task: takes the lease as soon as that may be, and keeps it.

        Raises:
            LeaseLostError: Somebody else has it.
        """
        await self._attempt(self._campaign)
        _log.info("lease.gained", lease=self._terms.name, epoch=self._epoch())
        self._gained.set()
        while True:
            await self._news.wait(self._pause)
            await self._attempt(self._keep)

    async def release(self) -> None:
        """Lets go of it, so that nobody has to wait; tried only, as whoever ends has no time."""
        self._valid_until = -math.inf
        with suppress(ApiError):
            try:
                await self._let_go()
            except ConflictError:  # A renewal that was cut off has been made after all.
                await self._look()
                await self._let_go()

    async def _attempt(self, what: Callable[[], Awaitable[bool]]) -> None:
        """Until it says that it is done."""
        while not await self._went_well(what):
            await self._news.wait(self._pause)

    async def _went_well(self, what: Callable[[], Awaitable[bool]]) -> bool:
        try:
            try:
                done = await what()
            except (ConflictError, NotFoundError):
                await self._look()
                return False
        except ApiError as error:
            self._fault.failed(str(error))
            # Whoever could not look has not seen that nothing changed; its holder could not renew it either.
            self._moved_at = self._clock.monotonic()
            return False
        self._fault.recovered()
        return done

    async def _campaign(self) -> bool:
        """Takes the lease if that may be, after waiting for it; whether this process has it."""
        while (patience := self._patience()) > 0:
            await self._news.wait(min(patience, self._pause))
            await self._watch_holder()
        present = self._present()
        transitions = max(self._next(present), await self._highest())
        begun = self._clock.monotonic()
        spec = lease.taken(self._terms.identity, self._terms.seconds, transitions, self._clock.now())
        if present is None:
            self._hold(await self._leases.make(self._key, {"spec": spec}), begun)
        else:
            self._hold(await self._leases.replace(present, "spec", spec), begun)
        return True

    async def _watch_holder(self) -> None:
        """Looks whether the holder could have renewed, and did: where this process had to wait, so had the other.

        Otherwise all that stand by would take the lease in the moment in which an API server is back that was away.
        """
        begun = self._clock.monotonic()
        await self._look()
        if self._clock.monotonic() - begun > self._pause:
            self._moved_at = self._clock.monotonic()

    async def _keep(self) -> bool:
        """Renews it, or makes it again where a person has deleted it.

        Raises:
            LeaseLostError: Somebody else has it.
        """
        present = self._present()
        self._demand(present)
        begun, now = self._clock.monotonic(), self._clock.now()
        if present is None:
            spec = lease.taken(self._terms.identity, self._terms.seconds, self._transitions or 0, now)
            self._hold(await self._leases.make(self._key, {"spec": spec}), begun)
        else:
            held = lease.renewed(present.spec, self._terms.seconds, now)
            self._hold(await self._leases.replace(present, "spec", held), begun)
        return True

    def _demand(self, present: Lease | None) -> None:
        if present is None:
            return
        spec = present.spec
        if spec.holder != self._terms.identity or spec.transitions != self._transitions:
            self._valid_until = -math.inf
            raise LeaseLostError(f"{spec.holder or 'nobody'} holds the lease {self._terms.name} now")

    def _patience(self) -> float:
        """Seconds until the lease may be taken, if nothing is heard of it until then."""
        present = self._present()
        if present is not None and present.spec.holder in ("", self._terms.identity):
            return 0.0  # Let go; or taken by an attempt of which no answer came.
        # One that is not there was perhaps deleted under a holder, which counts on it still.
        seconds = self._terms.seconds if present is None else max(self._terms.seconds, present.spec.seconds)
        return self._moved_at + seconds - self._clock.monotonic()

    def _next(self, present: Lease | None) -> int:
        if present is None:
            return 0
        own = present.spec.holder == self._terms.identity
        return present.spec.transitions if own else present.spec.transitions + 1

    def _hold(self, held: Lease, begun: float) -> None:
        self._cache.record_write(held)
        self._transitions = held.spec.transitions
        self._valid_until = begun + self._terms.seconds

    async def _let_go(self) -> None:
        present = self._present()
        if present is not None and present.spec.holder == self._terms.identity:
            spec = lease.released(present.spec, self._clock.now())
            self._cache.record_write(await self._leases.replace(present, "spec", spec))
            _log.info("lease.released", lease=self._terms.name)

    async def _look(self) -> None:
        """Brings it up to date, as the watch may not have told yet."""
        try:
            self._cache.record_write(await self._leases.get(self._key))
        except NotFoundError:
            if (known := self._present()) is not None:
                self._cache.record_deletion(known)

    def _present(self) -> Lease | None:
        return self._cache.objects.get(self._key)

    def _epoch(self) -> int:
        if self._transitions is None:
            raise AssertionError("only who has led has an epoch")
        return self._transitions + 1

    @property
    def _pause(self) -> float:
        return self._terms.seconds / RENEWALS

    def _moved(self, _before: Lease | None, after: Lease | None) -> None:
        self._moved_at = self._clock.monotonic()
        if after is None or after.spec.holder != self._terms.identity:  # Not this process's own renewal.
            self._news.set()
