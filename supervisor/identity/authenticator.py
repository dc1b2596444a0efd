"""Identifies the sender of an Authorization header, for every kind of token."""

from collections.abc import Awaitable
from typing import Protocol

import jwt

from supervisor.identity.tokens import ALGORITHM, Principal, Tokens, token_in


class PodAuthenticator(Protocol):
    """Authenticates tokens of pods."""

    def authenticate(self, token: str) -> Awaitable[Principal]:
        """Returns the principal of a token."""


class Authenticator:
    """Accepts the supervisor's own tokens, and on a cluster those of pods."""

    def __init__(self, tokens: Tokens, pods: PodAuthenticator | None = None) -> None:
        self._tokens = tokens
        self._pods = pods

    async def authenticate(self, authorization: str | None) -> Principal:
        """Returns the principal that sent an Authorization header.

        Raises:
            BadTokenError: The token is missing or invalid.
            ForeignPodError: The pod is neither an agent's nor a job's.
            AuthenticationUnavailableError: The token cannot be checked at present.
        """
        token = token_in(authorization)
        if self._pods is None or _is_ours(token):
            return self._tokens.authenticate(authorization)
        return await self._pods.authenticate(token)


def _is_ours(token: str) -> bool:
    """Decides by the algorithm: API servers sign with asymmetric keys."""
    try:
        return bool(jwt.get_unverified_header(token).get("alg") == ALGORITHM)
    except (jwt.InvalidTokenError, ValueError):  # Our own check refuses it.
        return True
