"""Keeps a cache in step with a resource: it lists, then watches, and lists again after a watch that failed."""

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from typing import Generic, TypeVar

import structlog

from servicekit.bounds import one_line
from servicekit.clock import Clock
from servicekit.faults import Backoff, Fault
from servicekit.kubernetes.cache import Cache
from servicekit.kubernetes.client import EventType, ResourceClient
from servicekit.kubernetes.errors import (
    ApiError,
    ApiUnavailableError,
    HistoryLostError,
    NotFoundError,
    RefusedError,
)
from servicekit.kubernetes.objects import Object, UnreadObject

R = TypeVar("R", bound=Object)

_FIRST_PAUSE = 0.1
_MAX_PAUSE = 1.0
"""Short: what is decided after an outage is decided within seconds of its end."""

_WATCH_SECONDS = 60
"""One request a minute. The connection itself notices a cut network sooner. An API server that keeps the connection and
sends nothing is noticed after this long and one time-out."""

_TOO_SHORT = 0.5
"""Seconds; a watch that ends sooner, over and over, would be a storm of requests."""

UNDEFINED_SECONDS = 10.0
"""A person installs a definition or grants a right: one small request each time."""

_log = structlog.get_logger()


class Reflector(Generic[R]):
    """Keeps a cache in step with a resource. The caller lists once with `list` or `first`, and then runs `run`.

    Args:
        client: The resource to follow.
        cache: Holds the objects.
        clock: Monotonic instants.
        watch_seconds: The length of one watch.
        cached: Lists may be a little old: the watch brings the rest. For what runs on every node.
        optional: The kind may be undefined or refused, now or later. `run` then looks again every `undefined_seconds`.
        undefined_seconds: See `optional`.
        on_synced: Called after each list, when the cache shows it.

    Attributes:
        lists: How many lists were asked for.
        defined: False as soon as the API server has answered that it has no such kind.
        synced: Whether the cache shows a list that a watch has kept up to date since. Between two orderly watches it
            stays so.
    """

    def __init__(  # noqa: PLR0913 - the first three are what it works on, the others have defaults
        self,
        client: ResourceClient[R],
        cache: Cache[R],
        clock: Clock,
        watch_seconds: int = _WATCH_SECONDS,
        *,
        cached: bool = False,
        optional: bool = False,
        undefined_seconds: float = UNDEFINED_SECONDS,
        on_synced: Callable[[], None] = lambda: None,
    ) -> None:
        self._cached = cached
        self._optional = optional
        self._undefined_seconds = undefined_seconds
        self._on_synced = on_synced
        self._client = client
        self._cache = cache
        self._watch_seconds = watch_seconds
        self._clock = clock
        self._fault = Fault(f"watch of {client.resource.plural}", clock)
        self._backoff = Backoff(_FIRST_PAUSE, _MAX_PAUSE)
        self._watching = False
        self._lost = False
        self.lists = 0
        self.defined = True
        self.synced = False

    @property
    def unread(self) -> int:
        """The number of objects that cannot be decoded at present."""
        return len(self._cache.unread)

    @property
    def trouble(self) -> str | None:
        """Why the cache may be behind, for people; None while a watch runs, or if there is nothing to watch."""
        if self._watching or not self.defined:
            return None
        return self._fault.reason or "not listed yet"

    async def list(self) -> None:
        """Brings the cache up to date in one step, so that half of a list is never visible.

        Raises:
            ApiError: It could not be had; the cache is as it was.
        """
        self.lists += 1
        listed = await self._client.list(self._cache.version if self._cached and not self._lost else "")
        for one in listed.unread:
            self._note_unread(one)
        self._cache.replace(listed.objects, listed.version, listed.unread)
        self.defined = self.synced = True
        self._on_synced()

    async def first(self) -> None:
        """Lists as soon as the API server answers; an optional kind that is not defined has no objects.

        Raises:
            ApiError: It refuses, and waiting will not help.
        """
        while True:
            try:
                return await self.list()
            except (ApiUnavailableError, HistoryLostError) as error:
                await asyncio.sleep(self._failed(error))
            except NotFoundError as error:
                if not self._optional:
                    raise
                self._failed(error)
                return None

    async def run(self) -> None:
        """Root task: follows for ever, also during outages and, for an optional kind, while its CRD is missing."""
        while True:
            try:
                with self._cache.bulkhead.guard("watch", self._client.resource.plural, passes=ApiError) as attempt:
                    await self.once()
            except ApiError as error:
                await asyncio.sleep(self._failed(error))
            else:
                if attempt.retry_in is not None:
                    self.synced = self._watching = False
                    await asyncio.sleep(attempt.retry_in)

    async def once(self) -> None:
        """Lists if that is needed, and follows one watch to its orderly end.

        A watch that continues another may start too far back without any fault: on a quiet resource without bookmarks,
        such as Events, its version is compacted away, by default after five minutes. Then the next call lists again.

        Raises:
            ApiError: It ended otherwise: something may have been missed.
        """
        if listed := not self.synced:
            await self.list()
        begun = self._clock.monotonic()
        try:
            watch = self._client.watch(self._cache.version, self._watch_seconds, self._opened)
            async with aclosing(watch) as events:
                async for kind, shown in events:
                    self._apply(kind, shown)
        except HistoryLostError:
            if listed:
                raise
            self.synced, self._watching, self._lost = False, False, True
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

    def _note_unread(self, one: UnreadObject) -> None:
        """Logs an object that cannot be decoded, once for each reason."""
        key, known = one.metadata.key, self._cache.unread.get(one.metadata.key)
        if known is not None and known.reason == one.reason:
            return
        plural, reason = self._client.resource.plural, one_line(one.reason)
        _log.warning("object.unread", kind=plural, namespace=key.namespace, name=key.name, reason=reason)

    def _failed(self, error: ApiError) -> float:
        """Records a failure; returns the seconds to wait before the next attempt."""
        self.synced = self._watching = False
        # Asked for what it does not know any more, the API server would answer the same again.
        self._lost = isinstance(error, HistoryLostError)
        if self._optional and isinstance(error, NotFoundError):
            self._note_undefined()
            return self._undefined_seconds
        self._fault.failed(str(error))
        return self._undefined_seconds if self._optional and isinstance(error, RefusedError) else self._backoff.next()

    def _note_undefined(self) -> None:
        if self.defined:
            plural = self._client.resource.plural
            _log.info("resource.undefined", resource=plural, looks_again_seconds=self._undefined_seconds)
        self.defined = False
        self._fault.recovered()

    def _apply(self, kind: EventType, shown: R | UnreadObject | str) -> None:
        if isinstance(shown, str):
            self._cache.advance(shown)
        elif kind is EventType.DELETED:
            self._cache.apply_deletion(shown)
        elif isinstance(shown, UnreadObject):
            self._note_unread(shown)
            self._cache.apply_unread(shown)
        else:
            self._cache.apply(shown)
