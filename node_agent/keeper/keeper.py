"""Keeps parts: the decisions of the ledger, carried out on files."""

import asyncio
import contextlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from node_agent.keeper.files import DraftFile, HostFullError, PartFiles, free_memory
from node_agent.keeper.ledger import Ledger, Part, StateKey, Tenant
from node_agent.keeper.refusals import RefusalCode, RequestRefusedError
from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock

_SWEEP_SECONDS = 1.0

_log = structlog.get_logger()


def ignore_parts(_count: int) -> None:
    """Does nothing, because nobody counts."""


def ignore_expired(_count: int, _were_read: bool) -> None:  # noqa: FBT001 - as it is called
    """Does nothing, because nobody counts."""


@dataclass(eq=False, slots=True, kw_only=True)
class StateKeeper:
    """Keeps parts for some seconds.

    `free` gives memory back in a thread, because a gigabyte takes half a second. Until then its room stays taken.

    Attributes:
        max_seconds: No part is kept longer.
        on_kept: Called with 1 for each part that has been received.
        on_expired: Called with the number of parts that have expired together, and whether these were read before.
    """

    ledger: Ledger
    files: PartFiles
    clock: Clock
    bulkhead: Bulkhead
    max_seconds: float
    on_kept: Callable[[int], None] = ignore_parts
    on_expired: Callable[[int, bool], None] = ignore_expired
    _unused: asyncio.Queue[tuple[Path, Part]] = field(init=False, default_factory=asyncio.Queue)

    def recover(self) -> None:
        """Lists what an earlier process has kept, and forgets what has expired since.

        Raises:
            OSError: The directory cannot be read.
        """
        parts = list(self.files.recover(self.clock.now() + self.max_seconds))
        for part in parts:
            self.ledger.restore(part)
        self.expire()
        if parts:
            _log.info("keeper.recovered", parts=len(parts), bytes=self.ledger.taken)

    def room(self, tenant: Tenant) -> int:
        """Returns the bytes that a tenant may still send."""
        return min(self.ledger.room(tenant), self.files.free())

    @contextlib.contextmanager
    def receiving(self, part: Part) -> Iterator[DraftFile]:
        """Takes the room of a part, then yields its draft. The part is kept if the context ends without an error.

        Raises:
            RequestRefusedError: See `Ledger.reserve` and `Ledger.check_expected`; or the host has no memory left.
        """
        reserved = self.ledger.reserve(part)
        draft = None
        try:
            draft = self.files.draft(part.room)
            yield draft
            self.ledger.check_expected(reserved)
            older = self.files.keep(draft, part)
        except BaseException as error:  # also where the request is cancelled: its room is given back
            self.ledger.abandon(reserved)
            if draft is None:
                self.ledger.release(part)
            else:
                self.files.close_draft(draft)
                self._unused.put_nowait((draft.path, part))
            if isinstance(error, HostFullError):
                free = self.room(part.tenant)
                raise RequestRefusedError(RefusalCode.NO_ROOM, f"the host has no room: {error}", free) from error
            raise
        self.files.close_draft(draft)
        replaced = self.ledger.commit(reserved)
        if older is not None and replaced is not None:
            self._unused.put_nowait((older, replaced))
        self.on_kept(1)
        seconds = round(part.until - self.clock.now(), 1)
        _log.info("part.kept", tenant=part.tenant, bytes=part.length, seconds=seconds, replaced=replaced is not None)

    def find(self, state: StateKey, number: int) -> Part | None:
        """Returns a part that is whole and has not expired."""
        return self.ledger.part(state, number, self.clock.now())

    def delete(self, state: StateKey) -> None:
        """Removes a state, if it is there."""
        parts = self.ledger.delete(state)
        for part in parts:
            self._retire(part)
        if parts:
            total = sum(part.length for part in parts)
            _log.info("state.deleted", tenant=parts[0].tenant, bytes=total, parts=len(parts))

    def expire(self) -> None:
        """Removes the parts whose time has come."""
        expired = self.ledger.expire(self.clock.now())
        for each in expired:
            self._retire(each.part)
        by_tenant = defaultdict(list)
        for each in expired:
            by_tenant[each.part.tenant].append(each)
        for tenant, parts in by_tenant.items():
            total, unread = sum(each.part.length for each in parts), sum(not each.was_read for each in parts)
            _log.info("parts.expired", tenant=tenant, bytes=total, parts=len(parts), unread=unread)
        for were_read, count in Counter(each.was_read for each in expired).items():
            self.on_expired(count, were_read)

    async def sweep(self) -> None:
        """Root task: removes parts within a second of their expiry."""
        while True:
            with self.bulkhead.guard("expiry"):
                self.expire()
            await asyncio.sleep(_SWEEP_SECONDS)

    async def free(self) -> None:
        """Root task: gives the memory of removed parts back, one after another."""
        while True:
            path, part = await self._unused.get()
            # A file that cannot be removed keeps its room: its memory is not free.
            with self.bulkhead.guard("removal", retried=False):
                await asyncio.to_thread(free_memory, path)
                self.ledger.release(part)

    def _retire(self, part: Part) -> None:
        # As in `free`: a part that cannot be removed keeps its room, and no other part has to wait for it.
        with self.bulkhead.guard("removal", retried=False):
            try:
                self._unused.put_nowait((self.files.retire(part), part))
            except FileNotFoundError:
                self.ledger.release(part)  # Somebody else has removed it, so that its memory is free.
