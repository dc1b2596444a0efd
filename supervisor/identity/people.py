"""Names what is asked about people, and for them: who sends a token, what they may do, and that it is done."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from supervisor.domain.asking import Asked
from supervisor.domain.notice import Subject
from supervisor.identity.tokens import Person, Reader


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """A right as the cluster's authorizers know it: a verb on a resource; without a name on all of them."""

    verb: str
    group: str
    resource: str
    namespace: str = ""
    name: str = ""

    def __str__(self) -> str:
        """The right in words, such as `patch pytorchjobs.kubeflow.org in the namespace x`."""
        resource = f"{self.resource}.{self.group}" if self.group else self.resource
        return f"{self.verb} {resource}" + (f" in the namespace {self.namespace}" if self.namespace else "")


READ = Access(verb="list", group="job-supervisor.kube-ai.io", resource="supervisedjobs")
"""The right to see the page, which shows the jobs of all namespaces."""


class People(Protocol):
    """The users of a cluster."""

    async def person(self, token: str) -> Person:
        """Returns whose token that is.

        Raises:
            BadTokenError: The token is invalid.
            TooManyError: Too many tokens are sent.
            AuthenticationUnavailableError: The token cannot be checked at present.
        """

    async def may(self, person: Person, access: Access) -> bool:
        """Returns whether a user has a right, by the cluster's own rules.

        Raises:
            AuthenticationUnavailableError: That cannot be known at present.
        """


class Steering(Protocol):
    """Decides who may ask for what, and carries it out."""

    async def permit(self, who: Reader, asked: Asked) -> None:
        """Returns if that person may ask for it.

        Raises:
            DeniedError: The person may not; the message says why.
            AuthenticationUnavailableError: That cannot be known at present.
        """

    async def carry_out(self, by: str, asked: Asked) -> Sequence[Subject]:
        """Carries out what somebody has asked for, and has been permitted; returns whose notices it has changed.

        Raises:
            UnknownNodeError: No agent of that node is known.
            UnknownJobError, ClusterJobError, JobIsOverError, JobEndsError: See `with_request`.
            StoreUnavailableError: It could not be stored.
            NotTakenError: The cluster does not take it.
        """
