"""Keeps a mirror in step with its collection: list, then watch; and list again after anything but an orderly end."""

import asyncio
from contextlib import aclosing
from typing import Generic, TypeVar

from servicekit.backoff import Backoff
from servicekit.clock import Clock
from servicekit.faults import Fault
from servicekit.kubernetes.cache import Cache
from servicekit.kubernetes.client import Collection, EventType
from servicekit.kubernetes.errors import ApiError, ApiUnavailableError, HistoryLostError
from servicekit.kubernetes.objects import Object

R = TypeVar("R", bound=Object)

_FIRST_PAUSE = 0.1
_MAX_PAUSE = 1.0
"""Short: what is decided after an outage is decided within seconds of its end."""

_WATCH_SECONDS = 60
"""One request a minute. A network that is cut without a word is missed sooner, by the connection itself; an API server
that holds its connection and says nothing, after this long and one time-out."""

_TOO_SHORT = 0.5
"""Seconds; a watch that ends sooner, over and over, would be a storm of requests."""


class Reflector(Generic[R]):
    """Lists once with `list`, then `run` follows for ever.

    Args:
        collection: What to follow.
        mirror: What shows it.
        clock: Monotonic instants.
        watch_seconds: How long one watch goes on.
        cached: Lists may be a little old: the watch tells the rest. For what runs on every node.
    """

    def __init__(
        self,
        collection: Collection[R],
        mirror: Cache[R],
        clock: Clock,
        watch_seconds: int = _WATCH_SECONDS,
        *,
        cached: bool = False,
    ) -> None:
        self._cached = cached
        self._collection = collection
        self._cache = mirror
        self._watch_seconds = watch_seconds
        self._clock = clock
        self._fault = Fault(f"watch of {collection.kind.plural}", clock)
        self._backoff = Backoff(_FIRST_PAUSE, _MAX_PAUSE)
        self._synced = False
        self._watching = False
        self._lost = False
        self.lists = 0

    @property
    def trouble(self) -> str | None:
        """Why the mirror may be behind, for people; None while a watch tells it everything."""
        if self._watching:
            return None
        return self._fault.reason or "not listed yet"

    async def list(self) -> None:
        """Brings the mirror up to date, all at once: there is no half of a list to see.

        Raises:
            ApiError: It could not be had; the mirror is as it was.
        """
        self.lists += 1
        objects, version = await self._collection.list(self._cache.version if self._cached and not self._lost else "")
        self._cache.listed(objects, version)
        self._synced = True

    async def first(self) -> None:
        """Lists as soon as that is possible.

        Raises:
            ApiError: It is not, and waiting will not help.
        """
        while True:
            try:
                return await self.list()
            except (ApiUnavailableError, HistoryLostError) as error:
                self._failed(error)
                await asyncio.sleep(self._backoff.next())

    async def run(self) -> None:
        """Root task: follows, whatever happens."""
        while True:
            try:
                await self.once()
            except ApiError as error:
                self._failed(error)
                await asyncio.sleep(self._backoff.next())

    async def once(self) -> None:
        """Lists where that is needed, and follows one watch to its orderly end.

        A watch that follows another one may begin too far back without any fault: where nothing happens and nobody
        sends bookmarks, as for Events, its version is compacted away, by default after five minutes. It lists again.

        Raises:
            ApiError: It ended otherwise: something may have been missed.
        """
        if listed := not self._synced:
            await self.list()
        begun = self._clock.monotonic()
        try:
            watch = self._collection.watch(self._cache.version, self._watch_seconds, self._opened)
            async with aclosing(watch) as news:
                async for kind, told in news:
                    self._tell(kind, told)
        except HistoryLostError:
            if listed:
                raise
            self._synced, self._watching, self._lost = False, False, True
            return
        finally:
            lived = self._clock.monotonic() - begun
            if lived >= _TOO_SHORT:
                self._backoff.reset()
        if lived < _TOO_SHORT:
            raise ApiUnavailableError("the watch ended as soon as it had begun")

    def _opened(self) -> None:
        self._watching = True
        self._fault.recovered()

    def _failed(self, error: ApiError) -> None:
        self._synced = self._watching = False
        # Asked for what it does not know any more, the API server would answer the same again.
        self._lost = isinstance(error, HistoryLostError)
        self._fault.failed(str(error))

    def _tell(self, kind: EventType, told: R | str) -> None:
        if isinstance(told, str):
            self._cache.passed(told)
        elif kind is EventType.DELETED:
            self._cache.told_gone(told)
        else:
            self._cache.told(told)
