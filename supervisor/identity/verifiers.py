"""Verifies service account tokens with the keys that the API server publishes, or else with TokenReviews."""

import asyncio
import hashlib
from dataclasses import dataclass
from typing import Any

import jwt
import msgspec
import structlog

from servicekit.bounds import keep_newest
from servicekit.clock import Clock
from servicekit.faults import Fault
from servicekit.kubernetes.errors import ApiError, ApiUnavailableError, NotFoundError, RefusedError
from servicekit.kubernetes.reviews import ReviewedPod, ReviewStatus, review
from servicekit.kubernetes.server import ApiServer, Call
from supervisor.identity.pod_tokens import KeysNotPublishedError, PodClaims
from supervisor.identity.tokens import AuthenticationUnavailableError, BadTokenError

_DISCOVERY_PATH = "/.well-known/openid-configuration"
_KEYS_PATH = "/openid/v1/jwks"
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

_KEEP_SECONDS = 60.0
"""A token is reviewed once a minute: when 5,000 agents and as many pods reconnect together, each needs one review."""
_MAX_KEPT = 20_000

_log = structlog.get_logger()


class _Discovery(msgspec.Struct, frozen=True):
    issuer: str


class _KeySet(msgspec.Struct, frozen=True):
    keys: list[dict[str, Any]]


class _BoundObject(msgspec.Struct, frozen=True):
    name: str
    uid: str


class _Bound(msgspec.Struct, frozen=True):
    namespace: str
    pod: _BoundObject
    serviceaccount: _BoundObject


class JwksVerifier:
    """Implements `Verifier` with the published keys. It keeps the keys while the API server is unavailable.

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
        try:
            key_id = str(jwt.get_unverified_header(token).get("kid", ""))
        except (jwt.InvalidTokenError, ValueError) as error:
            raise BadTokenError("no token") from error
        key = await self._key(key_id)
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
            now, issued = self._clock.now(), float(claims.get("iat", 0.0))
            begins = max(float(claims.get("nbf", 0.0)), issued)
            if not begins - _LEEWAY_SECONDS <= now < float(claims["exp"]) + _LEEWAY_SECONDS:
                raise BadTokenError("the token has expired, or is not valid yet")
            bound = msgspec.convert(claims["kubernetes.io"], _Bound)
        except (jwt.InvalidTokenError, LookupError, TypeError, ValueError, msgspec.MsgspecError) as error:
            raise BadTokenError("the token is not a pod's, has expired, or is for another audience") from error
        return PodClaims(
            namespace=bound.namespace,
            account=bound.serviceaccount.name,
            pod=bound.pod.name,
            uid=bound.pod.uid,
            issued=issued,
        )

    async def run(self) -> None:
        """Root task: fetches the keys before the first token needs them, and drops keys that are no more published."""
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
            issuer = self._given_issuer
            if not issuer:
                shown = await self._server.request(Call(method="GET", path=_DISCOVERY_PATH))
                issuer = msgspec.json.decode(shown, type=_Discovery).issuer
            self._keys = _usable(await self._server.request(Call(method="GET", path=_KEYS_PATH, accept=_KEYS_TYPE)))
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
        except msgspec.MsgspecError:
            self._fault.failed("what it says of itself cannot be read")
        finally:
            self._not_before = self._clock.monotonic() + _RETRY_SECONDS


def _usable(shown: bytes) -> dict[str, jwt.PyJWK]:
    """Returns the keys by id, without those of unknown types."""
    try:
        keys = msgspec.json.decode(shown, type=_KeySet).keys
        known = [each for each in keys if each.get("kty") in _KEY_TYPES and each.get("kid")]
        return {str(each["kid"]): jwt.PyJWK(each) for each in known}
    except (msgspec.MsgspecError, jwt.PyJWTError, ValueError, TypeError) as error:
        raise ApiUnavailableError("what it publishes are no keys") from error


@dataclass(frozen=True, slots=True)
class _ReviewOutcome:
    claims: PodClaims | None
    until: float


class TokenReviewVerifier:
    """Implements `Verifier` with TokenReviews. It remembers each result for a minute.

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
        self._outcomes: dict[bytes, _ReviewOutcome] = {}

    async def claims(self, token: str) -> PodClaims:
        issued = self._issued(token)
        key = hashlib.sha256(token.encode()).digest()
        outcome = self._outcomes.get(key)
        if outcome is None or outcome.until <= self._clock.monotonic():
            status = await self._review(token)
            pod = status.pod(self._audience)
            claims = None if pod is None else _claims(pod, issued)
            outcome = _ReviewOutcome(claims, self._clock.monotonic() + _KEEP_SECONDS)
            keep_newest(self._outcomes, key, outcome, _MAX_KEPT)
        if outcome.claims is None:
            raise BadTokenError("the token is not a pod's, has expired, or is for another audience")
        return outcome.claims

    def _issued(self, token: str) -> float:
        """Returns when the token was issued, according to its unverified claim. An expired token costs no review."""
        try:
            claims = jwt.decode(
                token,
                options={"verify_signature": False, "verify_exp": True, "verify_aud": True, "require": ["exp", "aud"]},
                audience=self._audience,
            )
            return float(claims.get("iat", 0.0))
        except (jwt.InvalidTokenError, LookupError, ValueError, TypeError, OverflowError, RecursionError) as error:
            raise BadTokenError("the token has expired, or is for another audience") from error

    async def _review(self, token: str) -> ReviewStatus:
        try:
            status = await review(self._server, token, [self._audience])
        except ApiError as error:
            self._fault.failed(str(error))
            raise AuthenticationUnavailableError(f"the API server cannot be asked about the token: {error}") from error
        self._fault.recovered()
        return status


def _claims(pod: ReviewedPod, issued: float) -> PodClaims:
    return PodClaims(namespace=pod.namespace, account=pod.account, pod=pod.name, uid=pod.uid, issued=issued)
