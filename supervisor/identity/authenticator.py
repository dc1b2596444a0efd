"""Who sent an Authorization header, whichever kind of token is in it."""

from collections.abc import Awaitable
from typing import Protocol

import jwt

from supervisor.identity.tokens import ALGORITHM, Principal, Tokens, token_in


class PodAuthenticator(Protocol):
    """Knows the tokens of pods."""

    def authenticate(self, token: str) -> Awaitable[Principal]:
        """Who bears it."""


class Authenticator:
    """Tokens of our own, and beside them those of pods where there is a cluster."""

    def __init__(self, tokens: Tokens, pods: PodAuthenticator | None = None) -> None:
        self._tokens = tokens
        self._pods = pods

    async def authenticate(self, authorization: str | None) -> Principal:
        """Who sent this Authorization header.

        Raises:
            BadTokenError: Nobody that is known.
            ForeignPodError: A pod that has nothing to say here.
            CannotTellError: That cannot be said at present.
        """
        token = token_in(authorization)
        if self._pods is None or _is_ours(token):
            return self._tokens.authenticate(authorization)
        return await self._pods.authenticate(token)


def _is_ours(token: str) -> bool:
    """By its algorithm: an API server signs with a key of which the other half can be published."""
    try:
        return bool(jwt.get_unverified_header(token).get("alg") == ALGORITHM)
    except (jwt.InvalidTokenError, ValueError):  # As good as ours: refused.
        return True
