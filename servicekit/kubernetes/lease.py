"""A Lease as it lies in a cluster: who holds it, for how long from each renewal, and how often it changed hands."""

from datetime import UTC, datetime

import msgspec

from servicekit.kubernetes.client import Resource
from servicekit.kubernetes.objects import Metadata

LEASES = Resource(group="coordination.k8s.io", version="v1", kind="Lease", plural="leases", namespaced=True)

_RELEASED_SECONDS = 1
"""The API server takes no less."""


class LeaseSpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The instants are for people: no two machines' clocks are ever compared."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    lease_transitions: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None

    @property
    def holder(self) -> str:
        """Who holds it; empty once it was let go."""
        return self.holder_identity or ""

    @property
    def seconds(self) -> int:
        """How long its holder may count on it after a renewal."""
        return self.lease_duration_seconds or 0

    @property
    def transitions(self) -> int:
        """Grows with every new holder."""
        return self.lease_transitions or 0


class Lease(msgspec.Struct, frozen=True):
    """One Lease."""

    metadata: Metadata
    spec: LeaseSpec = LeaseSpec()


def read(data: bytes | msgspec.Raw) -> Lease:
    """A Lease from the API server's JSON.

    Raises:
        msgspec.MsgspecError: It is none.
    """
    return msgspec.json.decode(data, type=Lease)


def taken(identity: str, seconds: int, transitions: int, now: float) -> LeaseSpec:
    """As its new holder writes it; `now` is Unix seconds."""
    return LeaseSpec(
        holder_identity=identity,
        lease_duration_seconds=seconds,
        lease_transitions=transitions,
        acquire_time=_instant(now),
        renew_time=_instant(now),
    )


def renewed(held: LeaseSpec, seconds: int, now: float) -> LeaseSpec:
    """As its holder writes it again."""
    return msgspec.structs.replace(held, lease_duration_seconds=seconds, renew_time=_instant(now))


def released(held: LeaseSpec, now: float) -> LeaseSpec:
    """As its holder leaves it behind."""
    return msgspec.structs.replace(
        held, holder_identity=None, lease_duration_seconds=_RELEASED_SECONDS, renew_time=_instant(now)
    )


def _instant(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
