"""How values of one kind lie in custom resources."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import msgspec

from servicekit.kubernetes.objects import Metadata, ObjectKey
from supervisor.store.conditions import Condition
from supervisor.store.fields import Fields

K_co = TypeVar("K_co", bound=Hashable, covariant=True)
T = TypeVar("T")


class CustomResource(msgspec.Struct, frozen=True):
    """A custom resource as it is read."""

    metadata: Metadata
    spec: Fields
    status: Fields | None = None


@dataclass(frozen=True, slots=True)
class Record(Generic[T]):
    """A resource and the value in it.

    The value is None while spec and status do not belong together, as it takes two requests to write both. `ours` is
    False if the resource is another supervisor's.
    """

    resource: CustomResource
    value: T | None
    conditions: tuple[Condition, ...] = ()
    ours: bool = True

    @property
    def metadata(self) -> Metadata:
        return self.resource.metadata

    @property
    def epoch(self) -> int:
        """The epoch of the last leader that wrote to it, 0 if none did."""
        return max(int(part.get("epoch", 0)) for part in (self.resource.spec, self.resource.status or {}))


class Codec(Protocol[K_co, T]):
    """Encodes the values of one kind into resources and decodes them."""

    def id(self, value: T) -> K_co:
        """Returns the key under which the store knows the value."""

    def rank(self, value: T) -> int:
        """Orders the values of one id: the highest is the present one."""

    def object_key(self, value: T) -> ObjectKey:
        """Returns the key of the resource for a value that has none yet."""

    def spare_key(self, key: ObjectKey) -> ObjectKey:
        """Returns the key for a value whose resource `key` does not decode; the same if its name has a meaning."""

    def metadata(self, value: T) -> Mapping[str, object]:
        """Returns further metadata of a new resource."""

    def encode(self, value: T, before: Record[T] | None, epoch: int) -> tuple[Fields, Fields]:
        """Returns spec and status as the leader of that epoch writes them over `before`.

        Raises:
            TypeError: The value has no form in JSON.
        """

    def decode(self, data: bytes | msgspec.Raw) -> Record[T]:
        """Reads a resource.

        Raises:
            msgspec.MsgspecError: It does not decode.
        """
