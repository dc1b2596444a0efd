"""Verifies service account tokens with the keys that the API server publishes, without a request per token."""

import asyncio
from collections.abc import Mapping
from typing import Any

import jwt
import msgspec
import structlog

from servicekit.clock import Clock
from servicekit.faults import Fault
from servicekit.kubernetes.errors import ApiError, ApiUnavailableError, NotFoundError, RefusedError
from servicekit.kubernetes.server import ApiServer, Call
from supervisor.identity.pod_tokens import KeysNotPublishedError, PodClaims
from supervisor.identity.tokens import AuthenticationUnavailableError, BadTokenError

_DISCOVERY = "/.well-known/openid-configuration"
_KEYS = "/openid/v1/jwks"
_KEYS_TYPE = "application/jwk-set+json"
"""The API server answers 406 to `application/json`."""

_ALGORITHMS = ["RS256", "ES256", "ES384", "ES512"]
"""The algorithms that Kubernetes signs with."""
_KEY_TYPES = ("RSA", "EC")

_LEEWAY_SECONDS = 10.0
"""How far the clocks of the API server and of this machine may differ."""

_RETRY_SECONDS = 10.0
"""The pause between two requests for an unknown key, as any peer can name one."""

_REFRESH_SECONDS = 600.0
"""A key stays valid for this long after the API server stops publishing it."""

_log = structlog.get_logger()


class _Configuration(msgspec.Struct, frozen=True):
    issuer: str


class _KeySet(msgspec.Struct, frozen=True):
    keys: list[dict[str, Any]]


class _Named(msgspec.Struct, frozen=True):
    name: str
    uid: str


class _Bound(msgspec.Struct, frozen=True):
    namespace: str
    pod: _Named
    serviceaccount: _Named


class JwksVerifier:
    """Implements `Verifier`; keeps the keys while the API server is unavailable.

    Args:
        server: The API server.
        audience: The audience that tokens must have.
        issuer: The issuer that tokens must have; empty: the one that the API server publishes.
        clock: The API server's clock, which decides whether a token has expired.
    """

    def __init__(self, server: ApiServer, audience: str, issuer: str, clock: Clock) -> None:
        self._server = server
        self._audience = audience
        self._given_issuer = issuer
        self._clock = clock
        self._fault = Fault("the API server's published keys", clock)
        self._fetching = asyncio.Lock()
        self._not_before = clock.monotonic()
        self._issuer = ""
        self._keys: dict[str, jwt.PyJWK] = {}
        self._refused: str | None = None

    async def claims(self, token: str) -> PodClaims:
        key = await self._key(_key_id(token))
        try:
            claims = jwt.decode(
                token,
                key,
                algorithms=_ALGORITHMS,
                audience=self._audience,
                issuer=self._issuer,
                # The life of a token is checked by the API server's clock below; the library uses this machine's.
                options={
                    "require": ["exp", "iss", "aud"],
                    "verify_exp": False,
                    "verify_nbf": False,
                    "verify_iat": False,
                },
            )
            self._check_life(claims)
            bound = msgspec.convert(claims["kubernetes.io"], _Bound)
            issued = float(claims.get("iat", 0.0))
        except (jwt.InvalidTokenError, LookupError, TypeError, ValueError, msgspec.MsgspecError) as error:
            raise BadTokenError("the token is not a pod's, has expired, or is for another audience") from error
        return PodClaims(
            namespace=bound.namespace,
            account=bound.serviceaccount.name,
            pod=bound.pod.name,
            uid=bound.pod.uid,
            issued=issued,
        )

    def _check_life(self, claims: Mapping[str, Any]) -> None:
        now = self._clock.now()
        begins = max(float(claims.get("nbf", 0.0)), float(claims.get("iat", 0.0)))
        if not begins - _LEEWAY_SECONDS <= now < float(claims["exp"]) + _LEEWAY_SECONDS:
            raise BadTokenError("the token has expired, or is not valid yet")

    async def run(self) -> None:
        """Root task: fetches the keys before the first token needs them, and drops keys that are published no more."""
        while True:
            async with self._fetching:
                await self._fetch()
            await asyncio.sleep(_RETRY_SECONDS if self._fault.reason else _REFRESH_SECONDS)

    async def _key(self, key_id: str) -> jwt.PyJWK:
        if key_id not in self._keys:
            async with self._fetching:
                # While this call waited for the lock, another one may have fetched the keys.
                if key_id not in self._keys and self._clock.monotonic() >= self._not_before:
                    await self._fetch()
        if key_id in self._keys:
            return self._keys[key_id]
        if self._refused is not None:
            raise KeysNotPublishedError(self._refused)
        if self._fault.reason is not None:
            raise AuthenticationUnavailableError(f"the API server's keys cannot be fetched: {self._fault.reason}")
        raise BadTokenError("the token is signed with a key that the API server does not publish")

    async def _fetch(self) -> None:
        try:
            issuer = self._given_issuer or await self._discover()
            self._keys = _usable(await self._server.request(Call(method="GET", path=_KEYS, accept=_KEYS_TYPE)))
            self._issuer = issuer
            self._refused = None
            self._fault.recovered()
        except (NotFoundError, RefusedError) as error:
            if self._refused is None:
                _log.warning("keys.not_published", why=str(error), instead="each token is reviewed")
            self._refused = str(error)
            self._fault.recovered()
        except ApiError as error:
            self._fault.failed(str(error))
        finally:
            self._not_before = self._clock.monotonic() + _RETRY_SECONDS

    async def _discover(self) -> str:
        shown = await self._server.request(Call(method="GET", path=_DISCOVERY))
        try:
            return msgspec.json.decode(shown, type=_Configuration).issuer
        except msgspec.MsgspecError as error:
            raise ApiUnavailableError("what it says of itself cannot be read") from error


def _key_id(token: str) -> str:
    try:
        return str(jwt.get_unverified_header(token).get("kid", ""))
    except (jwt.InvalidTokenError, ValueError) as error:
        raise BadTokenError("no token") from error


def _usable(shown: bytes) -> dict[str, jwt.PyJWK]:
    """The keys by id, without those of unknown types."""
    try:
        keys = msgspec.json.decode(shown, type=_KeySet).keys
        known = [each for each in keys if each.get("kty") in _KEY_TYPES and each.get("kid")]
        return {str(each["kid"]): jwt.PyJWK(each) for each in known}
    except (msgspec.MsgspecError, jwt.PyJWTError, ValueError, TypeError) as error:
        raise ApiUnavailableError("what it publishes are no keys") from error
