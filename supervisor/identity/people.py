"""Names what is asked about people, and for them: who sends a token, what they may do, and that it is done."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from supervisor.domain.asking import Asked
from supervisor.identity.tokens import Person, Reader


@dataclass(frozen=True, slots=True, kw_only=True)
class UserRight:
    """A right as the cluster's authorizers know it: a verb on a resource; without a name on all of them."""

    verb: str
    group: str
    resource: str
    namespace: str = ""
    name: str = ""

    def __str__(self) -> str:
        """The right in words, such as `patch jobs.batch in the namespace x`."""
        resource = f"{self.resource}.{self.group}" if self.group else self.resource
        return f"{self.verb} {resource}" + (f" in the namespace {self.namespace}" if self.namespace else "")


READ = UserRight(verb="list", group="job-supervisor.kube-ai.io", resource="supervisedjobs")
"""The right to see the page, which shows the jobs of all namespaces."""


class People(Protocol):
    """The users of a cluster."""

    async def person(self, token: str, peer: str) -> Person:
        """Returns whose token that is, which a peer has sent from an address.

        Raises:
            BadTokenError: The token is invalid.
            AuthenticationUnavailableError: The token cannot be checked at present.
        """

    async def may(self, person: Person, access: UserRight) -> bool:
        """Returns whether a user has a right, by the cluster's own rules.

        Raises:
            AuthenticationUnavailableError: That cannot be known at present.
        """


Carry = Callable[[], Awaitable[object]]
"""Carries out what was permitted."""


class Steering(Protocol):
    """Decides who may ask for what, and carries it out."""

    async def permit(self, who: Reader, asked: Asked) -> Carry:
        """Returns what carries it out, if that person may ask for it.

        Raises:
            NotPermittedError: The person may not; the message says why.
            AuthenticationUnavailableError: That cannot be known at present.
            UnknownSubjectError: There is no such job or node. What is returned raises it, too, and:
            UnknownNodeError, UnknownJobError, JobIsOverError, JobEndsError, StoreUnavailableError: See `StoreSteering`.
            NotTakenError, UncertainError: The cluster does not take it, or may not have taken it.
        """
