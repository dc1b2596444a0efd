"""A client for one resource of an API server: decoded objects on one side, raw JSON on the other."""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Generic, TypeVar

import msgspec

from servicekit.kubernetes.errors import ConflictError, RefusedError, UnreadableError
from servicekit.kubernetes.objects import Object, ObjectKey
from servicekit.kubernetes.server import Answer, ApiServer, Call, refusal

R = TypeVar("R", bound=Object)

_PATCH = "application/json-patch+json"
_MERGE = "application/merge-patch+json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """A kind of object as the API server serves it.

    Attributes:
        group: Empty for the core group.
        page: The most objects that one page of a list has.
    """

    group: str
    version: str
    kind: str
    plural: str
    namespaced: bool
    page: int = 500

    @property
    def api_version(self) -> str:
        """Group and version as an object's `apiVersion` has them."""
        return f"{self.group}/{self.version}" if self.group else self.version


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Limits a list or a watch: selectors as Kubernetes writes them, empty for all objects."""

    namespace: str = ""
    labels: str = ""
    fields: str = ""

    @property
    def query(self) -> dict[str, str]:
        """The query parameters of the selectors."""
        selectors = {"labelSelector": self.labels, "fieldSelector": self.fields}
        return {name: value for name, value in selectors.items() if value}


class EventType(StrEnum):
    """The type of a watch event."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"
    ERROR = "ERROR"


class _Event(msgspec.Struct, frozen=True):
    type: EventType
    object: msgspec.Raw


class _ListMetadata(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str
    continue_: str = msgspec.field(default="", name="continue")


class _Page(msgspec.Struct, frozen=True):
    metadata: _ListMetadata
    items: list[msgspec.Raw]


class _Bookmarked(msgspec.Struct, frozen=True):
    metadata: _ListMetadata


class ResourceClient(Generic[R]):
    """Reads and changes the objects of one resource.

    Args:
        server: The API server.
        resource: The kind of object.
        decode: Decodes one object; it may leave out what it does not need.
        selection: Limits `list` and `watch`; by default they cover all objects in all namespaces.
    """

    def __init__(
        self,
        server: ApiServer,
        resource: Resource,
        decode: Callable[[bytes | msgspec.Raw], R],
        selection: Selection = Selection(),
    ) -> None:
        self.resource = resource
        self._server = server
        self._decode = decode
        self._selection = selection

    async def list(self, not_older_than: str = "") -> tuple[list[R], str]:
        """All of them, by pages of one version, and that version: the present one.

        With `not_older_than`, as they were then or at any time since: the API server looks into its own memory, where
        thousands that ask at once would otherwise have etcd read everything thousands of times. "0" is any time.

        Raises:
            HistoryLostError: It does not know that version, as when the cluster was restored from a backup.
        """
        objects: list[R] = []
        since = {"resourceVersion": not_older_than, "resourceVersionMatch": "NotOlderThan"} if not_older_than else {}
        page = await self._page(since)
        while True:
            objects.extend(self._read(item) for item in page.items)
            if not page.metadata.continue_:
                return objects, page.metadata.resource_version
            page = await self._page({"continue": page.metadata.continue_})

    async def watch(
        self, version: str, seconds: int, opened: Callable[[], None]
    ) -> AsyncGenerator[tuple[EventType, R | str], None]:
        """What changed since that version, for so long: an object, or with a bookmark a version.

        Calls `opened` when the API server has agreed to tell.

        Raises:
            HistoryLostError: That version is too old.
        """
        query: dict[str, str | int] = {
            "watch": 1,
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": seconds,
            **self._selection.query,
        }
        call = Call(method="GET", path=self._all(), query=query)
        # The API server ends it by itself; one that does not is not there any more.
        async with aclosing(self._server.lines(call, seconds + self._server.timeout_seconds, opened)) as lines:
            async for line in lines:
                yield self._event(line)

    async def get(self, key: ObjectKey) -> R:
        """One object, as it is now."""
        return self._read(await self._server.request(Call(method="GET", path=self._path(key))))

    async def create(self, key: ObjectKey, spec: object) -> R:
        """Makes one; its status, if it has one, is another change.

        Raises:
            ConflictError: It is there already.
        """
        return await self.make(key, {"spec": spec})

    async def make(self, key: ObjectKey, content: Mapping[str, object], **metadata: object) -> R:
        """Makes one of all that is not its name: `metadata` such as labels, and whatever else its kind has.

        Raises:
            ConflictError: It is there already.
        """
        named = {"name": key.name, **({"namespace": key.namespace} if self.resource.namespaced else {}), **metadata}
        body = {"apiVersion": self.resource.api_version, "kind": self.resource.kind, "metadata": named, **content}
        path = self._path(ObjectKey(key.namespace, ""))
        return await self._change(Call(method="POST", path=path, body=msgspec.json.encode(body)))

    async def replace(self, read: R, part: str, value: object) -> R:
        """Replaces the spec or the status of an object that is still as it was read.

        Raises:
            ConflictError: It is not.
            NotFoundError: It is gone.
        """
        # A patch, as a PUT of a trimmed object would remove other people's labels and owner references.
        patch = [
            {"op": "replace", "path": "/metadata/resourceVersion", "value": read.metadata.resource_version},
            {"op": "add", "path": f"/{part}", "value": value},
        ]
        path = self._path(read.metadata.key) + ("/status" if part == "status" else "")
        return await self._change(Call(method="PATCH", path=path, body=msgspec.json.encode(patch), content_type=_PATCH))

    async def merge(
        self, read: R, content: Mapping[str, object], part: str = "", *, metadata: Mapping[str, object] | None = None
    ) -> R:
        """Merges changes into an object, whatever else of it has changed since it was read; `part` such as "status".

        Raises:
            ConflictError: Another object has that name by now.
            NotFoundError: None has.
        """
        body = msgspec.json.encode({**content, "metadata": {**(metadata or {}), "uid": read.metadata.uid}})
        path = self._path(read.metadata.key) + (f"/{part}" if part else "")
        try:
            return await self._change(Call(method="PATCH", path=path, body=body, content_type=_MERGE))
        except RefusedError as error:
            # Another uid is refused as any other change of an immutable field.
            if (await self.get(read.metadata.key)).metadata.uid == read.metadata.uid:
                raise
            raise ConflictError(str(error)) from error

    async def patch(self, read: R, operations: Sequence[Mapping[str, object]]) -> R:
        """Changes an object that is still as it was read, by operations of a JSON patch.

        Raises:
            ConflictError: It is not.
            NotFoundError: It is gone.
        """
        as_read = {"op": "replace", "path": "/metadata/resourceVersion", "value": read.metadata.resource_version}
        body = msgspec.json.encode([as_read, *operations])
        path = self._path(read.metadata.key)
        return await self._change(Call(method="PATCH", path=path, body=body, content_type=_PATCH))

    async def delete(self, read: R) -> None:
        """Deletes an object that is still as it was read.

        Raises:
            ConflictError: It is not.
            NotFoundError: It is gone.
        """
        metadata = read.metadata
        await self._delete(metadata.key, {"uid": metadata.uid, "resourceVersion": metadata.resource_version})

    async def delete_unconditionally(self, read: R, grace_seconds: int | None = None) -> None:
        """Deletes an object, whatever of it has changed since it was read; with its own grace where none is given.

        Raises:
            ConflictError: Another object has that name by now.
            NotFoundError: None has.
        """
        grace = {} if grace_seconds is None else {"gracePeriodSeconds": grace_seconds}
        await self._delete(read.metadata.key, {"uid": read.metadata.uid}, **grace)

    async def _delete(self, key: ObjectKey, conditions: Mapping[str, str], **options: int) -> None:
        asked = {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": conditions, **options}
        body = msgspec.json.encode(asked)
        await self._server.request(Call(method="DELETE", path=self._path(key), body=body))

    def _event(self, line: bytes) -> tuple[EventType, R | str]:
        event = _decoded(line, _Event)
        match event.type:
            case EventType.ERROR:
                raise refusal(_decoded(event.object, Answer).code, bytes(event.object))
            case EventType.BOOKMARK:
                return event.type, _decoded(event.object, _Bookmarked).metadata.resource_version
            case _:
                return event.type, self._read(event.object)

    async def _page(self, which: Mapping[str, str]) -> _Page:
        query: dict[str, str | int] = {"limit": self.resource.page, **which, **self._selection.query}
        return _decoded(await self._server.request(Call(method="GET", path=self._all(), query=query)), _Page)

    async def _change(self, call: Call) -> R:
        # Strict: a field that an older definition does not know would be dropped in silence.
        strict = replace(call, query={"fieldValidation": "Strict"})
        return self._read(await self._server.request(strict))

    def _read(self, data: bytes | msgspec.Raw) -> R:
        try:
            return self._decode(data)
        except (msgspec.MsgspecError, ValueError) as error:
            raise UnreadableError(f"{_name(data)} of {self.resource.plural} does not decode: {error}") from error

    def _all(self) -> str:
        return self._path(ObjectKey(self._selection.namespace, ""))

    def _path(self, key: ObjectKey) -> str:
        resource = self.resource
        root = "/apis" if resource.group else "/api"
        space = f"/namespaces/{key.namespace}" if resource.namespaced and key.namespace else ""
        name = f"/{key.name}" if key.name else ""
        return f"{root}/{resource.api_version}{space}/{resource.plural}{name}"


T = TypeVar("T")


def _decoded(data: bytes | msgspec.Raw, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.MsgspecError as error:
        raise UnreadableError(f"the API server's answer does not decode: {error}") from error


class _Named(msgspec.Struct, frozen=True):
    metadata: dict[str, Any]


def _name(data: bytes | msgspec.Raw) -> str:
    try:
        return str(msgspec.json.decode(data, type=_Named).metadata.get("name"))
    except msgspec.MsgspecError:
        return "something"
