"""Authenticates tenants: the token of a pod names its namespace, which is the tenant."""

import asyncio
import hashlib
from dataclasses import dataclass
from typing import Protocol

from node_agent.keeper.ledger import Tenant
from node_agent.keeper.refusals import RefusalCode, RequestRefusedError
from servicekit.bounds import keep_newest
from servicekit.clock import Clock
from servicekit.faults import Fault
from servicekit.kubernetes.errors import ApiError
from servicekit.kubernetes.reviews import review
from servicekit.kubernetes.server import ApiServer
from servicekit.rate import TokenBucket, TokenBuckets

_SCHEME = "Bearer "
_MAX_TOKEN = 8000
_KEEP_SECONDS = 60.0
"""The same token is reviewed once a minute."""
_MAX_KEPT = 4096
_PEER_RATE, _PEER_BURST = 1.0, 64.0
"""Reviews of tokens that one peer causes each second, and at once; and all peers together:"""
_RATE, _BURST = 10.0, 256.0

ONLY_TENANT = Tenant("host")


class Tenants(Protocol):
    """Says which tenant has sent a request."""

    async def tenant(self, authorization: str | None, peer: str) -> Tenant:
        """Returns the tenant of an Authorization header.

        Raises:
            RequestRefusedError: The token is missing, is no pod's, or cannot be reviewed at present.
        """


class OneTenant:
    """Takes everybody for the same tenant: on a host of one owner, without Kubernetes."""

    async def tenant(self, authorization: str | None, peer: str) -> Tenant:  # noqa: ARG002 - of the protocol
        return ONLY_TENANT


@dataclass(frozen=True, slots=True)
class _ReviewedToken:
    """Says until an instant (monotonic) which tenant has a token; None if it is no pod's."""

    tenant: Tenant | None
    until: float


class ReviewedTenants:
    """Implements `Tenants` with reviews by the API server.

    Args:
        server: The API server.
        audience: The audience that tokens must have.
        clock: For monotonic instants.
    """

    def __init__(self, server: ApiServer, audience: str, clock: Clock) -> None:
        self._server = server
        self._audience = audience
        self._clock = clock
        self._fault = Fault("reviews of tokens", clock)
        self._peers = TokenBuckets(_PEER_RATE, _PEER_BURST)
        self._all = TokenBucket(_RATE, _BURST)
        self._known: dict[bytes, _ReviewedToken] = {}
        self._asking: dict[bytes, asyncio.Task[Tenant | None]] = {}

    async def tenant(self, authorization: str | None, peer: str) -> Tenant:
        if authorization is None or not authorization.startswith(_SCHEME) or len(authorization) > _MAX_TOKEN:
            raise RequestRefusedError(RefusalCode.BAD_TOKEN, "there is no token")
        token = authorization.removeprefix(_SCHEME)
        key, now = hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest(), self._clock.monotonic()
        known = self._known.get(key)
        if known is None or known.until <= now:
            tenant = await self._asked(key, token, peer)
        else:
            tenant = known.tenant
        if tenant is None:
            raise RequestRefusedError(RefusalCode.BAD_TOKEN, "the token is not a pod's, has expired, or is for others")
        return tenant

    async def _asked(self, key: bytes, token: str, peer: str) -> Tenant | None:
        """Has a token reviewed, once for all requests that have it."""
        asking = self._asking.get(key)
        if asking is None:
            now = self._clock.monotonic()
            if self._peers.take(peer, now) or self._all.take(now):
                raise RequestRefusedError(RefusalCode.TOO_MANY, "too many tokens are being reviewed")
            asking = self._asking[key] = asyncio.create_task(self._review(key, token), name="token review")
            # Nobody else takes its exception if every request that waits for it has gone.
            asking.add_done_callback(lambda task: task.cancelled() or task.exception())
        # The others still get the answer if one request goes away.
        return await asyncio.shield(asking)

    async def _review(self, key: bytes, token: str) -> Tenant | None:
        try:
            status = await review(self._server, token, [self._audience])
        except ApiError as error:
            self._fault.failed(str(error))
            raise RequestRefusedError(RefusalCode.UNAVAILABLE, "the token cannot be reviewed at present") from error
        finally:
            del self._asking[key]
        self._fault.recovered()
        pod = status.pod(self._audience)
        tenant = None if pod is None else Tenant(pod.namespace)
        known = _ReviewedToken(tenant, self._clock.monotonic() + _KEEP_SECONDS)
        keep_newest(self._known, key, known, _MAX_KEPT)
        return tenant
