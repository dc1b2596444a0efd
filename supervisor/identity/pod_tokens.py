"""Authenticates pods: a service account token names its pod, and the pod determines the principal."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from servicekit.clock import Clock
from supervisor.domain.ids import Host
from supervisor.identity.tokens import (
    AgentPrincipal,
    AuthenticationUnavailableError,
    BadTokenError,
    ForeignPodError,
    Principal,
    ProcessPrincipal,
)

_NEW_SECONDS = 10.0
"""The pod of a younger token may not be in the cache yet: reopening the watch takes two seconds."""


class KeysNotPublishedError(Exception):
    """The API server does not publish its keys, so each token needs a TokenReview."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodClaims:
    """The claims of a valid token: its pod, the pod's service account, and when it was issued (Unix seconds)."""

    namespace: str
    account: str
    pod: str
    uid: str
    issued: float


class Verifier(Protocol):
    """Verifies tokens of pods."""

    def claims(self, token: str) -> Awaitable[PodClaims]:
        """Verifies a token and returns its claims.

        Raises:
            BadTokenError: The token is invalid, expired or for another audience.
            AuthenticationUnavailableError: The token cannot be checked at present.
            KeysNotPublishedError: This verifier cannot be used with this API server.
        """


class TokenPod(Protocol):
    """An existing pod."""

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name."""

    @property
    def account(self) -> str:
        """The service account."""

    @property
    def node(self) -> str:
        """The node; empty before the pod is bound."""


class PodsByUid(Protocol):
    """The cache of the cluster's pods."""

    @property
    def synced(self) -> bool:
        """Whether the cache is complete."""

    def pod(self, uid: str) -> TokenPod | None:
        """Returns the pod of that uid, if it exists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodTokens:
    """Authenticates the tokens of pods.

    Attributes:
        published: The verifier that is used first.
        reviews: The verifier that is used if the API server does not publish its keys.
        pods: The existing pods: a token outlives its pod by up to an hour.
        process_of: Returns the training process of the pod with that uid; None if the pod belongs to no job.
        agent_account: `namespace/name` of the service account of node agents.
        clock: For the age of a token.
    """

    published: Verifier
    reviews: Verifier
    pods: PodsByUid
    process_of: Callable[[str], ProcessPrincipal | None]
    agent_account: str
    clock: Clock

    async def authenticate(self, token: str) -> Principal:
        """Returns an agent with its node, or a training process with its job.

        Raises:
            BadTokenError: The token is invalid, or its pod is gone.
            ForeignPodError: The pod is neither an agent's nor a job's.
            AuthenticationUnavailableError: The token cannot be checked at present.
        """
        try:
            claims = await self.published.claims(token)
        except KeysNotPublishedError:
            claims = await self.reviews.claims(token)
        pod = self.pods.pod(claims.uid)
        if pod is None and not self.pods.synced:
            raise AuthenticationUnavailableError("the API server is unavailable, and the token's pod is not known")
        if pod is None and self.clock.now() < claims.issued + _NEW_SECONDS:
            raise AuthenticationUnavailableError("the token is new, and its pod is not known yet")
        if pod is None:
            raise BadTokenError("the token's pod is gone")
        if (*pod.key, pod.account) != (claims.namespace, claims.pod, claims.account):
            raise BadTokenError("the token's pod is another one")
        if f"{claims.namespace}/{claims.account}" == self.agent_account:
            if not pod.node:
                raise AuthenticationUnavailableError("the agent's pod is on no node yet")
            return AgentPrincipal(Host(pod.node))
        process = self.process_of(claims.uid)
        if process is None:
            raise ForeignPodError(f"pod {claims.namespace}/{claims.pod} belongs to no job")
        return process
