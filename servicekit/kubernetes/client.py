"""A client for one resource of an API server: decoded objects on one side, raw JSON on the other."""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Generic, NamedTuple, TypeVar
from urllib.parse import quote

import msgspec

from servicekit.kubernetes.errors import ConflictError, RefusedError, UnreadableError
from servicekit.kubernetes.objects import Object, ObjectKey, UnreadObject
from servicekit.kubernetes.server import Answer, ApiServer, Call, api_error

R = TypeVar("R", bound=Object)

_PATCH = "application/json-patch+json"
_MERGE = "application/merge-patch+json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """A kind of object as the API server serves it.

    Attributes:
        group: Empty for the core group.
        page: The most objects that one page of a list has.
        status_version: The version in which the status is a subresource, if it is not one in `version`, in which an
            object is then created together with its status.
    """

    group: str
    version: str
    kind: str
    plural: str
    namespaced: bool
    page: int = 500
    status_version: str = ""

    @property
    def api_version(self) -> str:
        """The group and version, as in the `apiVersion` of an object."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def of_status(self) -> "Resource":
        """The resource in the version in which the status is a subresource."""
        return replace(self, version=self.status_version or self.version)


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


class Listing(NamedTuple, Generic[R]):
    """All objects as of one version. Objects that cannot be decoded are in `unread`."""

    objects: list[R]
    version: str
    unread: list[UnreadObject]


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

    def selecting(self, selection: Selection) -> "ResourceClient[R]":
        """Returns a client of the same resource that lists and watches what a selection selects."""
        return ResourceClient(self._server, self.resource, self._decode, selection)

    async def list(self, not_older_than: str = "") -> Listing[R]:
        """Returns all objects as of one version; by default the present one.

        With `not_older_than` they are as of that version or a later one, and "0" allows any. The API server then
        answers from its memory: thousands of clients that list at once would otherwise make etcd read everything
        thousands of times.

        Raises:
            HistoryLostError: The API server does not know that version, as after a restore from a backup.
        """
        objects: list[R] = []
        unread: list[UnreadObject] = []
        since = {"resourceVersion": not_older_than, "resourceVersionMatch": "NotOlderThan"} if not_older_than else {}
        page = await self._page(since)
        while True:
            for item in page.items:
                # One object that another version wrote must not hide all others.
                match self._read_or_outline(item):
                    case UnreadObject() as outline:
                        unread.append(outline)
                    case one:
                        objects.append(one)
            if not page.metadata.continue_:
                return Listing(objects, page.metadata.resource_version, unread)
            page = await self._page({"continue": page.metadata.continue_})

    async def watch(
        self, version: str, seconds: int, on_open: Callable[[], None]
    ) -> AsyncGenerator[tuple[EventType, R | UnreadObject | str], None]:
        """Yields the changes after a version, for some seconds: objects, and for a bookmark its version.

        Of an object that does not decode it yields the outline.

        Calls `on_open` when the API server has accepted the watch.

        Raises:
            HistoryLostError: The version is too old.
        """
        query: dict[str, str | int] = {
            "watch": 1,
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": seconds,
            **self._selection.query,
        }
        call = Call(method="GET", path=self._all(), query=query)
        # The API server ends the watch by itself; one that does not is gone.
        async with aclosing(self._server.lines(call, seconds + self._server.timeout_seconds, on_open)) as lines:
            async for line in lines:
                yield self._event(line)

    async def get(self, key: ObjectKey) -> R:
        """Returns the present state of one object.

        Raises:
            NotFoundError: There is none.
        """
        return self._read(await self._server.request(Call(method="GET", path=self._path(key))))

    async def create(self, key: ObjectKey, content: Mapping[str, object], **metadata: object) -> R:
        """Creates an object. The API server drops its status if that is a subresource, which needs a second request.

        Args:
            key: Its name.
            content: All but its metadata, such as the spec.
            **metadata: All but its name, such as labels.

        Raises:
            ConflictError: There is one already.
        """
        named = {"name": key.name, **({"namespace": key.namespace} if self.resource.namespaced else {}), **metadata}
        body = {"apiVersion": self.resource.api_version, "kind": self.resource.kind, "metadata": named, **content}
        path = self._path(ObjectKey(key.namespace, ""))
        return await self._change(Call(method="POST", path=path, body=msgspec.json.encode(body)))

    async def replace(self, read: R, part: str, value: object) -> R:
        """Replaces the spec or the status, if the object has not changed since it was read.

        Raises:
            ConflictError: It has changed.
            NotFoundError: It is gone.
        """
        # A patch: a PUT of an object that was decoded in part would remove labels and owner references of others.
        patch = [
            {"op": "replace", "path": "/metadata/resourceVersion", "value": read.metadata.resource_version},
            {"op": "add", "path": f"/{part}", "value": value},
        ]
        key = read.metadata.key
        path = _path(self.resource.of_status, key) + "/status" if part == "status" else self._path(key)
        return await self._change(Call(method="PATCH", path=path, body=msgspec.json.encode(patch), content_type=_PATCH))

    async def merge(
        self, read: R, content: Mapping[str, object], part: str = "", *, metadata: Mapping[str, object] | None = None
    ) -> R:
        """Merges changes into an object, or into a part such as "status", also if it has changed since it was read.

        Raises:
            ConflictError: Another object has that name by now.
            NotFoundError: It is gone.
        """
        body = msgspec.json.encode({**content, "metadata": {**(metadata or {}), "uid": read.metadata.uid}})
        path = self._path(read.metadata.key) + (f"/{part}" if part else "")
        try:
            return await self._change(Call(method="PATCH", path=path, body=body, content_type=_MERGE))
        except RefusedError as error:
            # The API server refuses another uid like any change of an immutable field.
            if (await self.get(read.metadata.key)).metadata.uid == read.metadata.uid:
                raise
            raise ConflictError(str(error)) from error

    async def patch(self, read: R, operations: Sequence[Mapping[str, object]]) -> R:
        """Applies operations of a JSON patch, if the object has not changed since it was read.

        Raises:
            ConflictError: It has changed.
            NotFoundError: It is gone.
        """
        as_read = {"op": "replace", "path": "/metadata/resourceVersion", "value": read.metadata.resource_version}
        body = msgspec.json.encode([as_read, *operations])
        path = self._path(read.metadata.key)
        return await self._change(Call(method="PATCH", path=path, body=body, content_type=_PATCH))

    async def delete(self, read: Object) -> None:
        """Deletes an object, if it has not changed since it was read.

        Raises:
            ConflictError: It has changed.
            NotFoundError: It is gone.
        """
        metadata = read.metadata
        await self._delete(metadata.key, {"uid": metadata.uid, "resourceVersion": metadata.resource_version})

    async def delete_unconditionally(self, read: R, grace_seconds: int | None = None) -> None:
        """Deletes an object, also if it has changed since it was read; by default with the grace of its spec.

        Raises:
            ConflictError: Another object has that name by now.
            NotFoundError: It is gone.
        """
        grace = {} if grace_seconds is None else {"gracePeriodSeconds": grace_seconds}
        await self._delete(read.metadata.key, {"uid": read.metadata.uid}, **grace)

    async def _delete(self, key: ObjectKey, conditions: Mapping[str, str], **options: int) -> None:
        asked = {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": conditions, **options}
        body = msgspec.json.encode(asked)
        await self._server.request(Call(method="DELETE", path=self._path(key), body=body))

    def _event(self, line: bytes) -> tuple[EventType, R | UnreadObject | str]:
        event = _decoded(line, _Event)
        match event.type:
            case EventType.ERROR:
                raise api_error(_decoded(event.object, Answer).code, bytes(event.object))
            case EventType.BOOKMARK:
                return event.type, _decoded(event.object, _Bookmarked).metadata.resource_version
            case _:
                return event.type, self._read_or_outline(event.object)

    async def _page(self, which: Mapping[str, str]) -> _Page:
        query: dict[str, str | int] = {"limit": self.resource.page, **which, **self._selection.query}
        return _decoded(await self._server.request(Call(method="GET", path=self._all(), query=query)), _Page)

    async def _change(self, call: Call) -> R:
        # Strict: the API server would silently drop a field that an older definition lacks.
        strict = replace(call, query={"fieldValidation": "Strict"})
        return self._read(await self._server.request(strict))

    def _read(self, data: bytes | msgspec.Raw) -> R:
        try:
            return self._decode(data)
        except (msgspec.MsgspecError, ValueError) as error:
            raise UnreadableError(f"{_name(data)} of {self.resource.plural} does not decode: {error}") from error

    def _read_or_outline(self, data: msgspec.Raw) -> R | UnreadObject:
        """Decodes an object, or its metadata.

        Raises UnreadableError if not even that works, which no API server causes.
        """
        try:
            return self._read(data)
        except UnreadableError as error:
            outline = _decoded(data, UnreadObject)
            return UnreadObject(outline.metadata, str(error.__cause__))

    def _all(self) -> str:
        return self._path(ObjectKey(self._selection.namespace, ""))

    def _path(self, key: ObjectKey) -> str:
        return _path(self.resource, key)


def _path(resource: Resource, key: ObjectKey) -> str:
    root = "/apis" if resource.group else "/api"
    # A name that is none, such as one with `/../`, must not lead to another object.
    space = f"/namespaces/{quote(key.namespace, safe='')}" if resource.namespaced and key.namespace else ""
    name = f"/{quote(key.name, safe='')}" if key.name else ""
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
