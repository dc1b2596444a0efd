"""The Lease object: its holder, how long it lasts after each renewal, and how often the holder has changed."""

from datetime import UTC, datetime

import msgspec

from servicekit.kubernetes.client import Resource
from servicekit.kubernetes.objects import Metadata

LEASES = Resource(group="coordination.k8s.io", version="v1", kind="Lease", plural="leases", namespaced=True)

_RELEASED_SECONDS = 1
"""The least that the API server accepts."""


class LeaseSpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The spec of a Lease. Its instants are for people only, because nobody compares the clocks of two machines."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    lease_transitions: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None

    @property
    def holder(self) -> str:
        """The holder's identity; empty after a release."""
        return self.holder_identity or ""

    @property
    def seconds(self) -> int:
        """How long the lease lasts after a renewal."""
        return self.lease_duration_seconds or 0

    @property
    def transitions(self) -> int:
        """The number of changes of the holder."""
        return self.lease_transitions or 0


class Lease(msgspec.Struct, frozen=True):
    """A Lease object."""

    metadata: Metadata
    spec: LeaseSpec = LeaseSpec()


def read(data: bytes | msgspec.Raw) -> Lease:
    """Decodes a Lease.

    Raises:
        msgspec.MsgspecError: The JSON is not a Lease.
    """
    return msgspec.json.decode(data, type=Lease)


def taken(identity: str, seconds: int, transitions: int, now: float) -> LeaseSpec:
    """Returns the spec that a new holder writes; `now` is Unix seconds."""
    return LeaseSpec(
        holder_identity=identity,
        lease_duration_seconds=seconds,
        lease_transitions=transitions,
        acquire_time=_instant(now),
        renew_time=_instant(now),
    )


def renewed(held: LeaseSpec, seconds: int, now: float) -> LeaseSpec:
    """Returns the spec that the holder writes to renew the lease."""
    return msgspec.structs.replace(held, lease_duration_seconds=seconds, renew_time=_instant(now))


def released(held: LeaseSpec, now: float) -> LeaseSpec:
    """Returns the spec that the holder writes to release the lease."""
    return msgspec.structs.replace(
        held, holder_identity=None, lease_duration_seconds=_RELEASED_SECONDS, renew_time=_instant(now)
    )


def _instant(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
