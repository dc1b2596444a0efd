"""Verifies service account tokens by TokenReviews, for API servers that do not publish their keys."""

import hashlib
from dataclasses import dataclass

import jwt
import msgspec

from servicekit.clock import Clock
from servicekit.faults import Fault
from servicekit.kubernetes.errors import ApiError
from servicekit.kubernetes.server import ApiServer, Call
from supervisor.identity.pod_tokens import PodClaims
from supervisor.identity.tokens import AuthenticationUnavailableError, BadTokenError

_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"
_ACCOUNT = "system:serviceaccount"
_POD_NAME, _POD_UID = "authentication.kubernetes.io/pod-name", "authentication.kubernetes.io/pod-uid"

_KEEP_SECONDS = 60.0
"""A token is reviewed once a minute: when 5,000 agents and as many pods reconnect together, each needs one review."""
_MAX_KEPT = 20_000


class _User(msgspec.Struct, frozen=True):
    username: str = ""
    extra: dict[str, list[str]] = {}


class _Status(msgspec.Struct, frozen=True):
    authenticated: bool = False
    audiences: list[str] = []
    user: _User = _User()


class _Review(msgspec.Struct, frozen=True):
    status: _Status = _Status()


@dataclass(frozen=True, slots=True)
class _Outcome:
    claims: PodClaims | None
    until: float


class TokenReviewVerifier:
    """Implements `Verifier`; remembers each result for a minute.

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
        self._outcomes: dict[bytes, _Outcome] = {}

    async def claims(self, token: str) -> PodClaims:
        issued = self._issued(token)
        key = hashlib.sha256(token.encode()).digest()
        if self._known(key) is None:
            await self._ask(token, key, issued)
        outcome = self._outcomes[key]
        if outcome.claims is None:
            raise BadTokenError("the token is not a pod's, has expired, or is for another audience")
        return outcome.claims

    def _issued(self, token: str) -> float:
        """When the token was issued, by its own unverified claim. A token that has expired costs no review."""
        try:
            said = jwt.decode(
                token,
                options={"verify_signature": False, "verify_exp": True, "verify_aud": True, "require": ["exp", "aud"]},
                audience=self._audience,
            )
            return float(said.get("iat", 0.0))
        except (jwt.InvalidTokenError, LookupError, ValueError, TypeError, OverflowError, RecursionError) as error:
            raise BadTokenError("the token has expired, or is for another audience") from error

    def _known(self, key: bytes) -> _Outcome | None:
        outcome = self._outcomes.get(key)
        return outcome if outcome is not None and outcome.until > self._clock.monotonic() else None

    async def _ask(self, token: str, key: bytes, issued: float) -> None:
        status = await self._review(token)
        self._outcomes.pop(key, None)
        if len(self._outcomes) >= _MAX_KEPT:
            del self._outcomes[next(iter(self._outcomes))]
        claims = _claims(status.user, issued) if status.authenticated and self._audience in status.audiences else None
        self._outcomes[key] = _Outcome(claims, self._clock.monotonic() + _KEEP_SECONDS)

    async def _review(self, token: str) -> _Status:
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token, "audiences": [self._audience]},
        }
        try:
            shown = await self._server.request(Call(method="POST", path=_REVIEWS, body=msgspec.json.encode(body)))
            status = msgspec.json.decode(shown, type=_Review).status
        except (ApiError, msgspec.MsgspecError) as error:
            self._fault.failed(str(error))
            raise AuthenticationUnavailableError(f"the API server cannot be asked about the token: {error}") from error
        self._fault.recovered()
        return status


def _claims(user: _User, issued: float) -> PodClaims | None:
    """None if the user is not a pod."""
    rest, _, account = user.username.rpartition(":")
    prefix, _, namespace = rest.rpartition(":")
    pod, uid = user.extra.get(_POD_NAME, [""])[0], user.extra.get(_POD_UID, [""])[0]
    if prefix != _ACCOUNT or not pod or not uid:
        return None
    return PodClaims(namespace=namespace, account=account, pod=pod, uid=uid, issued=issued)
