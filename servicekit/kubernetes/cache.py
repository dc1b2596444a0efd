"""A local copy of the objects of one resource. It is correct in whatever order their states arrive.

States arrive from three sides: a list, the watch that continues it, and the answers to this process's own writes, which
are often faster than the watch. An older state never replaces a newer one.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Generic, TypeVar

from servicekit.bulkhead import Bulkhead
from servicekit.kubernetes.objects import Object, ObjectKey, UnreadObject

R = TypeVar("R", bound=Object)


class Cache(Generic[R]):
    """The objects by their keys.

    Args:
        name: The name of the resource in the log.
        on_change: Called after each change with the object before and after; None stands for "there is none".
        bulkhead: Keeps what `on_change` raises with the object, so that the others are told of.
    """

    def __init__(self, name: str, on_change: Callable[[R | None, R | None], None], bulkhead: Bulkhead) -> None:
        self._name = name
        self._on_change = on_change
        self.bulkhead = bulkhead
        self._objects: dict[ObjectKey, R] = {}
        self._unread: dict[ObjectKey, UnreadObject] = {}
        self._deleted: set[str] = set()  # Uids that this process deleted and that the watch may still report.
        self._seen = 0  # The list or the watch has covered everything up to this version.

    @property
    def objects(self) -> Mapping[ObjectKey, R]:
        """A live view."""
        return MappingProxyType(self._objects)

    @property
    def unread(self) -> Mapping[ObjectKey, UnreadObject]:
        """A live view of objects whose present state cannot be decoded; `objects` keeps their last decoded state."""
        return MappingProxyType(self._unread)

    @property
    def version(self) -> str:
        """The version from which a watch has to continue."""
        return str(self._seen)

    def replace(self, objects: Sequence[R], version: str, unread: Sequence[UnreadObject] = ()) -> None:
        """Replaces the objects by a complete list as of `version`.

        Changes that this process has made since then stay.
        """
        fresh = {one.metadata.key: one for one in objects if one.metadata.uid not in self._deleted}
        outlines = {one.metadata.key: one for one in unread if one.metadata.uid not in self._deleted}
        reset = int(version) < self._seen  # The cluster was restored from a backup: earlier states are void.
        self._seen = int(version)
        for key, known in list(self._objects.items()):
            outline = None if reset else outlines.get(key)
            is_listed = key in fresh or (outline is not None and outline.metadata.uid == known.metadata.uid)
            if not is_listed and (reset or known.metadata.version <= self._seen):
                self._set(key, None)
        for key, one in fresh.items():
            if reset or self._is_news(one):
                self._set(key, one)
        self._unread = {key: one for key, one in outlines.items() if reset or self._is_news(one)}
        self._deleted &= {one.metadata.uid for one in objects} | {one.metadata.uid for one in unread}

    def apply(self, one: R) -> None:
        """Applies a watch event: an object was added or modified."""
        self.advance(one.metadata.resource_version)
        if one.metadata.uid not in self._deleted:
            self._put(one)

    def apply_unread(self, one: UnreadObject) -> None:
        """Applies a watch event: an object was added or modified, and cannot be decoded."""
        self.advance(one.metadata.resource_version)
        key, known = one.metadata.key, self._objects.get(one.metadata.key)
        if one.metadata.uid in self._deleted or not self._is_news(one):
            return
        if known is not None and known.metadata.uid != one.metadata.uid:
            self._set(key, None)
        self._unread[key] = one

    def apply_deletion(self, one: Object) -> None:
        """Applies a watch event: an object was deleted."""
        self.advance(one.metadata.resource_version)
        self._deleted.discard(one.metadata.uid)
        self._drop_unread(one)
        self._drop(one.metadata.key, one.metadata.uid)

    def advance(self, version: str) -> None:
        """Records that the watch has reached this version."""
        self._seen = max(self._seen, int(version))

    def record_write(self, one: R) -> None:
        """Applies the API server's answer to a write or to a read of one object."""
        # The watch has reported all states up to `_seen`: an older object that is not here has been deleted since.
        if one.metadata.version > self._seen and one.metadata.uid not in self._deleted:
            self._put(one)

    def record_deletion(self, one: Object) -> None:
        """Records that this process has deleted an object, whatever its version was."""
        was_unread = self._drop_unread(one)
        if self._drop(one.metadata.key, one.metadata.uid) or was_unread:
            self._deleted.add(one.metadata.uid)

    def _put(self, one: R) -> None:
        if self._is_news(one):
            self._set(one.metadata.key, one)

    def _is_news(self, one: Object) -> bool:
        known = self._objects.get(one.metadata.key)
        return known is None or known.metadata.version < one.metadata.version

    def _drop_unread(self, one: Object) -> bool:
        outline = self._unread.get(one.metadata.key)
        if outline is None or outline.metadata.uid != one.metadata.uid:
            return False
        del self._unread[one.metadata.key]
        return True

    def _drop(self, key: ObjectKey, uid: str) -> bool:
        known = self._objects.get(key)
        if known is None or known.metadata.uid != uid:
            return False
        self._set(key, None)
        return True

    def _set(self, key: ObjectKey, one: R | None) -> None:
        self._unread.pop(key, None)
        before = self._objects.pop(key, None)
        if one is not None:
            self._objects[key] = one
        with self.bulkhead.guard("watch", (self._name, key), retried=False):
            self._on_change(before, one)
