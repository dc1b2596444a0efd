"""What every object of a cluster has."""

from datetime import datetime
from typing import NamedTuple, Protocol

import msgspec


class ObjectKey(NamedTuple):
    """One object of a collection; `namespace` is empty where the collection has none."""

    namespace: str
    name: str


class Metadata(msgspec.Struct, frozen=True, rename="camel"):
    """Those fields of an object's metadata that anybody here asks for."""

    name: str
    uid: str
    resource_version: str
    namespace: str = ""
    creation_timestamp: datetime | None = None

    @property
    def key(self) -> ObjectKey:
        """Which object it is."""
        return ObjectKey(self.namespace, self.name)

    @property
    def version(self) -> int:
        """Orders all states of all objects of a collection, as Kubernetes promises since 1.35 and etcd always did."""
        return int(self.resource_version)


class Object(Protocol):
    """Anything with metadata."""

    @property
    def metadata(self) -> Metadata:
        """Which object it is, and which state of it."""
