"""Bounds the uploads and downloads of one tenant at once. Pure.

A download needs no token, so it counts as one of the tenant whose state is read.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from node_agent.keeper.ledger import Tenant
from node_agent.keeper.refusals import RefusalCode, RequestRefusedError


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferBounds:
    """The most uploads and downloads of one tenant at once.

    Attributes:
        of_tenant: With all peers.
        with_peer: With one address. The pods of a node may share that of the node towards others, so one tenant must
            not take all of the connections that an address may have.
    """

    of_tenant: int
    with_peer: int


@dataclass(eq=False, slots=True)
class Transfers:
    """Counts the uploads and downloads that are in progress."""

    bounds: TransferBounds
    _counts: Counter[tuple[Tenant, str | None]] = field(init=False, default_factory=Counter)

    @contextmanager
    def one(self, tenant: Tenant, peer: str) -> Iterator[None]:
        """Counts one upload or download while the context lasts.

        Raises:
            RequestRefusedError: The tenant has too many already.
        """
        of_tenant, with_peer = (tenant, None), (tenant, peer)
        if self._counts[of_tenant] >= self.bounds.of_tenant or self._counts[with_peer] >= self.bounds.with_peer:
            raise RequestRefusedError(RefusalCode.TOO_MANY, "too many parts of the tenant are sent or read at once")
        self._counts.update((of_tenant, with_peer))
        try:
            yield
        finally:
            self._counts -= Counter((of_tenant, with_peer))  # keeps none that is 0
