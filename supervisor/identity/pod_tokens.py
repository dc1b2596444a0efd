"""The pod is the identity: a token that the cluster made for a pod says which one, and the pod says the rest."""

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Protocol

from servicekit.clock import Clock
from supervisor.domain.ids import Host, cluster_job
from supervisor.identity.tokens import (
    Agent,
    AuthenticationUnavailableError,
    BadTokenError,
    ForeignPodError,
    Principal,
    Process,
)

_NEW_SECONDS = 10.0
"""A younger token may be of a pod that the watch has not told of yet: it takes two seconds to be opened again."""


class KeysNotPublishedError(Exception):
    """The API server does not show its keys: have it look at each token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodClaims:
    """What a good token says: which pod it was made for, the pod's service account, and when, in Unix seconds."""

    namespace: str
    account: str
    pod: str
    uid: str
    issued: float


class Verifier(Protocol):
    """Tells good tokens."""

    def claims(self, token: str) -> Awaitable[PodClaims]:
        """What it says.

        Raises:
            BadTokenError: It is none, or for somebody else, or has expired.
            CannotTellError: That cannot be said at present.
            NotPublishedError: This verifier cannot say, nor will it.
        """


class PodOwner(Protocol):
    """Whoever controls a pod."""

    @property
    def kind(self) -> str:
        """The kind of the owner's object."""

    @property
    def name(self) -> str:
        """In the pod's namespace."""

    @property
    def uid(self) -> str:
        """Tells it from an earlier one of that name."""


class Pod(Protocol):
    """A pod that there is."""

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name."""

    @property
    def account(self) -> str:
        """Its service account."""

    @property
    def node(self) -> str:
        """Where it is, "" before that is decided."""

    @property
    def owner(self) -> PodOwner | None:
        """Its controller."""


class Pods(Protocol):
    """The pods of the cluster."""

    @property
    def synced(self) -> bool:
        """Whether these are all that there are, as far as anybody has said."""

    def pod(self, uid: str) -> Pod | None:
        """The pod of that uid, if there is one now."""


class PodTokens:
    """Says who bears a pod's token.

    Args:
        published: Asked first.
        reviews: Asked where that cannot say.
        pods: The live ones: a token outlives its pod by up to an hour.
        agent_account: `namespace/name` of the service account of node agents.
        clock: For the age of a token.
    """

    def __init__(self, published: Verifier, reviews: Verifier, pods: Pods, agent_account: str, clock: Clock) -> None:
        self._published = published
        self._reviews = reviews
        self._pods = pods
        self._agent_account = agent_account
        self._clock = clock

    async def authenticate(self, token: str) -> Principal:
        """An agent for its node, or a training process for its job.

        Raises:
            BadTokenError: It is no good, or its pod is gone.
            ForeignPodError: The pod is neither an agent's nor a job's.
            CannotTellError: That cannot be said at present.
        """
        claims = await self._claims(token)
        pod = self._live(claims)
        if f"{claims.namespace}/{claims.account}" == self._agent_account:
            return _agent(pod)
        return _process(claims, pod)

    async def _claims(self, token: str) -> PodClaims:
        try:
            return await self._published.claims(token)
        except KeysNotPublishedError:
            return await self._reviews.claims(token)

    def _live(self, claims: PodClaims) -> Pod:
        pod = self._pods.pod(claims.uid)
        if pod is None and not self._pods.synced:
            raise AuthenticationUnavailableError("the API server is away, and the token's pod is not known")
        if pod is None and self._clock.now() < claims.issued + _NEW_SECONDS:
            raise AuthenticationUnavailableError("the token is new, and its pod is not known yet")
        if pod is None:
            raise BadTokenError("the token's pod is gone")
        if (*pod.key, pod.account) != (claims.namespace, claims.pod, claims.account):
            raise BadTokenError("the token's pod is another one")
        return pod


def _agent(pod: Pod) -> Agent:
    if not pod.node:
        raise AuthenticationUnavailableError("the agent's pod is on no node yet")
    return Agent(Host(pod.node))


def _process(claims: PodClaims, pod: Pod) -> Process:
    """Which run it is, the job knows."""
    owner = pod.owner
    if owner is None:
        raise ForeignPodError(f"pod {claims.namespace}/{claims.pod} belongs to no job")
    job = cluster_job(claims.namespace, owner.kind.lower(), owner.name)
    return Process(job, owner.uid, run=None, host=Host(claims.pod))
