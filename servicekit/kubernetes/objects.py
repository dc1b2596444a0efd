"""Defines the key, the metadata and the owners that all objects of a cluster have."""

from datetime import datetime
from typing import NamedTuple, Protocol

import msgspec


class ObjectKey(NamedTuple):
    """Names an object of a resource; `namespace` is empty where the resource has none."""

    namespace: str
    name: str


class Metadata(msgspec.Struct, frozen=True, rename="camel"):
    """The fields of an object's metadata that are in use here."""

    name: str
    uid: str
    resource_version: str
    namespace: str = ""
    creation_timestamp: datetime | None = None

    @property
    def key(self) -> ObjectKey:
        """The object's key."""
        return ObjectKey(self.namespace, self.name)

    @property
    def version(self) -> int:
        """The resource version as a number.

        It orders all states of a resource: Kubernetes promises so since 1.35, etcd always did.
        """
        return int(self.resource_version)


class Owner(msgspec.Struct, frozen=True, rename="camel"):
    """An owner of an object, in the object's namespace; `controller`: it manages the object."""

    kind: str
    name: str
    uid: str
    api_version: str = ""
    controller: bool = False

    def is_of(self, group: str, kind: str) -> bool:
        """Whether it is of this kind, in any version. Several groups have a kind `Job`."""
        return (self.api_version.rpartition("/")[0], self.kind) == (group, kind)


class OwnedMetadata(Metadata, frozen=True, rename="camel"):
    """Metadata that includes the owners of the object."""

    owner_references: tuple[Owner, ...] = ()


class UnreadObject(msgspec.Struct, frozen=True):
    """An object that cannot be decoded: its metadata, and the reason."""

    metadata: Metadata
    reason: str = ""


class Object(Protocol):
    """Anything with metadata."""

    @property
    def metadata(self) -> Metadata:
        """Identifies the object and its state."""
