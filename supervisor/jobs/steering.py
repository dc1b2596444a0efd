"""Carries out what people ask for on a cluster, where the cluster keeps such requests, as far as its rights allow."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from servicekit.kubernetes.client import Resource
from servicekit.kubernetes.errors import ApiError, NotFoundError, RefusedError
from supervisor.cluster.objects import NODES
from supervisor.cluster.requests import CORE_EVENTS, EVENTS, NODE_EVENTS_NAMESPACE, ClusterRequests
from supervisor.domain.asking import (
    Asked,
    BeginDrain,
    BeginDrill,
    EndDrain,
    EndDrill,
    NotPermittedError,
    NotTakenError,
    SteerJob,
    UncertainError,
    UnknownSubjectError,
    signed,
)
from supervisor.domain.ids import STANDALONE, bare_name, kind_of, namespace
from supervisor.identity.people import Carry, People, Steering, UserRight
from supervisor.identity.tokens import Person, Reader

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
"""What the names of objects and namespaces have in common: no slash, among others, that would lead elsewhere."""

_DRILL = tuple(
    UserRight(verb="create", group=events.group, resource=events.plural, namespace=NODE_EVENTS_NAMESPACE)
    for events in (EVENTS, CORE_EVENTS)
)
"""The rights to hold a drill. Users of a namespace often have only the second one."""


@dataclass(frozen=True, slots=True)
class _Change:
    """A change that somebody asks for: any one of the rights permits it, and `write` makes it."""

    rights: tuple[UserRight, ...]
    what: str
    write: Carry


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSteering:
    """Implements `Steering`: users of the cluster may do what they may do with kubectl.

    The supervisor writes it, with its own rights.

    Attributes:
        people: The users of the cluster.
        requests: Writes what they ask for.
        resources: The API resource of each kind of jobs, by the kind's name.
        own: For operators with a token of the supervisor.
    """

    people: People
    requests: ClusterRequests
    resources: Mapping[str, Resource]
    own: Steering

    async def permit(self, who: Reader, asked: Asked) -> Carry:
        if not isinstance(who, Person):
            return await self.own.permit(who, asked)
        change = self._change(who.name, asked)
        for access in change.rights:
            if await self.people.may(who, access):
                return partial(_written, change)
        raise NotPermittedError(f"{who.name} may not {change.rights[0]}.")

    def _change(self, by: str, asked: Asked) -> _Change:
        match asked:
            case SteerJob():
                return self._of_job(by, asked)
            case BeginDrain(node=node, lead=lead, reason=reason):
                write = partial(self.requests.drain, _name(node), lead, signed(by, reason))
                return _Change((_patch(NODES, "", node),), f"the node {node}", write)
            case EndDrain(node=node):
                write = partial(self.requests.undrain, _name(node))
                return _Change((_patch(NODES, "", node),), f"the node {node}", write)
            case BeginDrill(node=node, lead=lead):
                return _Change(_DRILL, f"the node {node}", partial(self._drill, _name(node), lead, by))
            case EndDrill(node=node):
                if node is None:
                    raise UnknownSubjectError("This names no node.")
                return _Change(_DRILL, f"the node {node}", partial(self._drill, _name(node), 0.0, by))

    def _of_job(self, by: str, asked: SteerJob) -> _Change:
        job = asked.job
        if kind_of(job) == STANDALONE:
            raise NotPermittedError("A launcher has registered this job: that needs the token of an operator.")
        resource = self.resources.get(kind_of(job))
        if resource is None:
            raise UnknownSubjectError(f"No kind of jobs is called {kind_of(job)}.")
        right = _patch(resource, _name(namespace(job)), _name(bare_name(job)))
        write = partial(self.requests.steer, resource, job, asked.kind, f"{by}: {asked.reason}")
        return _Change((right,), f"the job {bare_name(job)}", write)

    async def _drill(self, node: str, lead: float, by: str) -> None:
        await self.requests.drill(await self.requests.node(node), lead, by)


def _patch(resource: Resource, space: str, name: str) -> UserRight:
    return UserRight(verb="patch", group=resource.group, resource=resource.plural, namespace=space, name=name)


def _name(text: str) -> str:
    """Returns the name of an object.

    Raises:
        UnknownSubjectError: No object can have that name.
    """
    if not _NAME.fullmatch(text):
        raise UnknownSubjectError(f"{text!r} is no name of an object.")
    return text


async def _written(change: _Change) -> None:
    with _taking(change.what):
        await change.write()


@contextmanager
def _taking(what: str) -> Iterator[None]:
    """Says why the API server does not take a change."""
    try:
        yield
    except NotFoundError as error:
        raise UnknownSubjectError(f"There is no such object: {what}.") from error
    except RefusedError as error:
        raise NotTakenError(f"The supervisor may not change {what}: {error}.") from error
    except ApiError as error:
        raise UncertainError(f"It is not known whether {what} was changed: {error}. Try again.") from error
