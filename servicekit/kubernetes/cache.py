"""A local copy of one collection, right whatever order its news come in.

News come from three sides: a list, the watch that goes on from there, and the answers to this process's own changes,
which are often here before the watch tells of them. An older state never replaces a newer one.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Generic, TypeVar

from servicekit.kubernetes.objects import Object, ObjectKey

R = TypeVar("R", bound=Object)


class Cache(Generic[R]):
    """The objects of a collection.

    Args:
        on_change: Called with every object before and after it changed; None stands for "there is none".
    """

    def __init__(self, on_change: Callable[[R | None, R | None], None]) -> None:
        self._on_change = on_change
        self._objects: dict[ObjectKey, R] = {}
        self._deleted: set[str] = set()  # Uids that were deleted here and of which the watch may still tell.
        self._seen = 0  # Everything up to this version has come by the list or the watch.

    @property
    def objects(self) -> Mapping[ObjectKey, R]:
        """All of them, live."""
        return MappingProxyType(self._objects)

    @property
    def version(self) -> str:
        """Where a watch has to go on."""
        return str(self._seen)

    def replace(self, objects: Sequence[R], version: str) -> None:
        """A whole list, as it was at that version; what was changed here since then stays."""
        fresh = {one.metadata.key: one for one in objects if one.metadata.uid not in self._deleted}
        reset = int(version) < self._seen  # The cluster was restored from a backup: nothing from before counts.
        self._seen = int(version)
        for key, known in list(self._objects.items()):
            if key not in fresh and (reset or known.metadata.version <= self._seen):
                self._set(key, None)
        for key, one in fresh.items():
            if reset or self._is_news(one):
                self._set(key, one)
        self._deleted &= {one.metadata.uid for one in objects}

    def apply(self, one: R) -> None:
        """The watch tells of an object that was added or modified."""
        self.advance(one.metadata.resource_version)
        if one.metadata.uid not in self._deleted:
            self._put(one)

    def apply_deletion(self, one: R) -> None:
        """The watch tells of an object that was deleted."""
        self.advance(one.metadata.resource_version)
        self._deleted.discard(one.metadata.uid)
        self._drop(one.metadata.key, one.metadata.uid)

    def advance(self, version: str) -> None:
        """The watch has come to that version."""
        self._seen = max(self._seen, int(version))

    def record_write(self, one: R) -> None:
        """The API server's answer to a change, or to a look at one object."""
        # What the watch has passed it has told: were it not here, it would have been deleted since.
        if one.metadata.version > self._seen and one.metadata.uid not in self._deleted:
            self._put(one)

    def record_deletion(self, one: R) -> None:
        """This object, whatever its version, was deleted here."""
        if self._drop(one.metadata.key, one.metadata.uid):
            self._deleted.add(one.metadata.uid)

    def _put(self, one: R) -> None:
        if self._is_news(one):
            self._set(one.metadata.key, one)

    def _is_news(self, one: R) -> bool:
        known = self._objects.get(one.metadata.key)
        return known is None or known.metadata.version < one.metadata.version

    def _drop(self, key: ObjectKey, uid: str) -> bool:
        known = self._objects.get(key)
        if known is None or known.metadata.uid != uid:
            return False
        self._set(key, None)
        return True

    def _set(self, key: ObjectKey, one: R | None) -> None:
        before = self._objects.pop(key, None)
        if one is not None:
            self._objects[key] = one
        self._on_change(before, one)
