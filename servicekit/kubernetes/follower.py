"""Follows the objects of a resource that may not be installed, in all namespaces or in some."""

import asyncio
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Generic, TypeVar

from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.kubernetes.cache import Cache
from servicekit.kubernetes.client import ResourceClient, Selection
from servicekit.kubernetes.objects import Object, UnreadObject
from servicekit.kubernetes.reflector import UNDEFINED_SECONDS, Reflector

R = TypeVar("R", bound=Object)


class Follower(Generic[R]):
    """Caches the objects of a resource. The caller lists them once with `first`, and then runs `run`.

    Each namespace has a watch of its own, with a version of its own. Its right to watch is then a Role's.

    Args:
        client: Reads the objects, of a kind that may be undefined or refused, now or later.
        on_change: Called after each change with the object before and after; None stands for "there is none".
        clock: Monotonic instants.
        bulkhead: Keeps what `on_change` raises with its object.
        namespaces: The namespaces whose objects are followed; empty for all.
        labels: A label selector; empty for all objects.
        undefined_seconds: Pause between checks while the kind is not defined.
        on_synced: Called after each list, when the cache shows it.
    """

    def __init__(  # noqa: PLR0913 - the first four are what it works on, the others have defaults
        self,
        client: ResourceClient[R],
        on_change: Callable[[R | None, R | None], None],
        clock: Clock,
        bulkhead: Bulkhead,
        *,
        namespaces: Collection[str] = (),
        labels: str = "",
        undefined_seconds: float = UNDEFINED_SECONDS,
        on_synced: Callable[[], None] = lambda: None,
    ) -> None:
        self._on_synced = on_synced
        self._listed: set[str] = set()
        self._caches: dict[str, Cache[R]] = {}
        self._reflectors: list[Reflector[R]] = []
        for namespace in namespaces or ("",):
            cache = self._caches[namespace] = Cache(client.resource.plural, on_change, bulkhead)
            reflector = Reflector(
                client.selecting(Selection(namespace=namespace, labels=labels)),
                cache,
                clock,
                optional=True,
                undefined_seconds=undefined_seconds,
                on_synced=partial(self._note_list, namespace),
            )
            self._reflectors.append(reflector)

    @property
    def listed(self) -> bool:
        """Whether the objects of each namespace have been listed once."""
        return len(self._listed) == len(self._caches)

    @property
    def synced(self) -> bool:
        """Whether the caches show lists that watches have kept up to date since."""
        return all(reflector.synced for reflector in self._reflectors)

    @property
    def objects(self) -> Sequence[R]:
        """The objects of all namespaces."""
        return [one for cache in self._caches.values() for one in cache.objects.values()]

    @property
    def unread(self) -> Sequence[UnreadObject]:
        """The objects whose present state cannot be decoded."""
        return [one for cache in self._caches.values() for one in cache.unread.values()]

    def record_write(self, one: R) -> None:
        """Applies the API server's answer to a write, before the watch delivers it."""
        if (cache := self._cache(one)) is not None:
            cache.record_write(one)

    def record_deletion(self, one: Object) -> None:
        """Records that this process has deleted an object."""
        if (cache := self._cache(one)) is not None:
            cache.record_deletion(one)

    async def first(self) -> None:
        """Lists as soon as the API server answers; a kind that is not defined has no objects.

        Raises:
            ApiError: It refuses, and waiting will not help.
        """
        for reflector in self._reflectors:
            await reflector.first()

    async def run(self) -> None:
        """Root task: follows for ever, also during outages and while the kind is not defined."""
        async with asyncio.TaskGroup() as group:
            for reflector in self._reflectors:
                group.create_task(reflector.run())

    def _cache(self, one: Object) -> Cache[R] | None:
        return self._caches.get("") or self._caches.get(one.metadata.namespace)

    def _note_list(self, namespace: str) -> None:
        self._listed.add(namespace)
        self._on_synced()
