"""Has the API server review tokens, and the rights of users."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import jwt
import msgspec

from servicekit.bounds import keep_newest
from servicekit.clock import Clock
from servicekit.kubernetes.errors import ApiError
from servicekit.kubernetes.reviews import review
from servicekit.kubernetes.server import ApiServer, Call
from servicekit.rate import TokenBucket, TokenBuckets
from supervisor.identity.people import READ, UserRight
from supervisor.identity.tokens import AuthenticationUnavailableError, BadTokenError, Person

_RIGHTS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"

_MAX_TOKEN = 8192
_KEEP_SECONDS = 30.0
"""Whose token it is, and whether that user may see the page, is asked again then: a right can be taken away."""
_MAX_KEPT = 1000
_KEEP_READERS_SECONDS = 600.0
"""For so long, whoever was last known to may see the page also sees it while the API server does not answer."""
_PEER_RATE, _PEER_BURST = 1.0, 20.0
"""Reviews of tokens that one peer sends each second, and at once; of all peers together:"""
_TOKENS_RATE, _TOKENS_BURST = 20.0, 200.0
_RIGHTS_RATE, _RIGHTS_BURST = 20.0, 100.0
"""Reviews of rights to act; likewise, apart, of rights to look and again of tokens that were good before."""
_POD = "authentication.kubernetes.io/pod-uid"


class _AccessStatus(msgspec.Struct, frozen=True):
    allowed: bool = False


class _AccessReview(msgspec.Struct, frozen=True):
    status: _AccessStatus = _AccessStatus()


@dataclass(frozen=True, slots=True)
class _Known:
    """Says until an instant (monotonic) whose a token is; None if it is nobody's."""

    person: Person | None
    until: float


@dataclass(frozen=True, slots=True)
class _Reading:
    """Whether somebody may see the page, as it was known at an instant (monotonic)."""

    allowed: bool
    at: float


class ReviewedPeople:
    """Implements `People` with reviews by the API server.

    Args:
        server: A connection to the API server of its own, so that no decision waits for a review.
        audience: The audience of tokens that are made for the supervisor; others are the API server's own. A pod's
            token for it is good for what the pod reports, and for nothing else.
        clock: For monotonic instants, and for whether a token has expired.
    """

    def __init__(self, server: ApiServer, audience: str, clock: Clock) -> None:
        self._server = server
        self._audience = audience
        self._clock = clock
        self._peers = TokenBuckets(_PEER_RATE, _PEER_BURST)
        self._new_tokens = TokenBucket(_TOKENS_RATE, _TOKENS_BURST)
        self._acting, self._looking = (TokenBucket(_RIGHTS_RATE, _RIGHTS_BURST) for _ in range(2))
        self._known: dict[bytes, _Known] = {}
        self._readers: dict[Person, _Reading] = {}

    async def person(self, token: str, peer: str) -> Person:
        """Returns whose token that is. The same token is reviewed once in half a minute."""
        if len(token) > _MAX_TOKEN:
            raise BadTokenError("the token is too long")
        key, now = hashlib.sha256(token.encode()).digest(), self._clock.monotonic()
        known = self._known.get(key)
        if known is None or known.until <= now:
            person = await self._reviewed(token, "" if known is not None and known.person else peer)
            known = _Known(person, now + _KEEP_SECONDS)
            keep_newest(self._known, key, known, _MAX_KEPT)
        if known.person is None:
            raise BadTokenError("the token is nobody's, or it has expired")
        return known.person

    async def may(self, person: Person, access: UserRight) -> bool:
        """Returns whether a user has a right. Only for the right to read an answer is good for half a minute."""
        if access != READ:
            return await self._is_allowed(person, access)
        now, known = self._clock.monotonic(), self._readers.get(person)
        if known is not None and now < known.at + _KEEP_SECONDS:
            return known.allowed
        try:
            allowed = await self._is_allowed(person, access)
        except AuthenticationUnavailableError:
            if known is not None and known.allowed and now < known.at + _KEEP_READERS_SECONDS:
                return True
            raise
        keep_newest(self._readers, person, _Reading(allowed, now), _MAX_KEPT)
        return allowed

    async def _reviewed(self, token: str, peer: str) -> Person | None:
        """Has a token reviewed; without a peer it was good before, and nobody else's tokens keep it out."""
        audiences, until = _claims(token)
        if until is not None and until <= self._clock.now():
            return None
        now = self._clock.monotonic()
        if self._looking.take(now) if not peer else self._peers.take(peer, now) or self._new_tokens.take(now):
            raise AuthenticationUnavailableError("too many tokens are being asked about")
        ours = [self._audience] if self._audience in audiences else []
        try:
            status = await review(self._server, token, ours)
        except ApiError as error:
            raise AuthenticationUnavailableError(f"the API server cannot be asked about the token: {error}") from error
        user = status.user
        if not status.authenticated or not user.username:
            return None
        if ours and (self._audience not in status.audiences or _POD in user.extra):
            return None
        extra = tuple((name, tuple(values)) for name, values in sorted(user.extra.items()))
        return Person(name=user.username, uid=user.uid, groups=tuple(user.groups), extra=extra, until=until)

    async def _is_allowed(self, person: Person, access: UserRight) -> bool:
        attributes = {
            "verb": access.verb,
            "group": access.group,
            "resource": access.resource,
            "namespace": access.namespace,
            "name": access.name,
        }
        spec = {
            "user": person.name,
            "uid": person.uid,
            "groups": person.groups,
            "extra": dict(person.extra),
            "resourceAttributes": attributes,
        }
        body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
        if (self._looking if access == READ else self._acting).take(self._clock.monotonic()):
            raise AuthenticationUnavailableError("too many rights are being asked about")
        try:
            shown = await self._server.request(Call(method="POST", path=_RIGHTS, body=msgspec.json.encode(body)))
            return msgspec.json.decode(shown, type=_AccessReview).status.allowed
        except (ApiError, msgspec.MsgspecError) as error:
            raise AuthenticationUnavailableError(f"the API server cannot be asked about rights: {error}") from error


def _claims(token: str) -> tuple[Sequence[str], float | None]:
    """Returns the audiences of a token and when it expires, by its unverified claims; None if it does not say so."""
    try:
        claims = jwt.decode(token, options={"verify_signature": False})
        given = claims.get("aud", [])
        audiences = [given] if isinstance(given, str) else list(given)
        until = float(claims["exp"]) if "exp" in claims else None
    except (jwt.InvalidTokenError, ValueError, TypeError, OverflowError, RecursionError):  # As those of webhooks are.
        return [], None
    return audiences, until
