"""Carries out what people ask for on a cluster, where the cluster keeps such requests, as far as its rights allow."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from servicekit.kubernetes.client import Resource
from servicekit.kubernetes.errors import ApiError, ApiUnavailableError, NotFoundError, RefusedError
from supervisor.cluster.requests import EVENTS, NODE_EVENTS_NAMESPACE, ClusterRequests
from supervisor.domain.asking import Asked, DeniedError, DrainNode, HoldDrill, NotTakenError, SteerJob
from supervisor.domain.ids import STANDALONE, JobName, bare_name, kind_of, namespace
from supervisor.domain.notice import Subject
from supervisor.identity.people import READ, Access, People, Steering
from supervisor.identity.tokens import Person, Reader


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSteering:
    """Implements `Steering`: users of the cluster may do what they may do with kubectl.

    The supervisor writes it, with its own rights.

    Attributes:
        people: The users of the cluster.
        requests: Writes what they ask for.
        resources: The API resource of each kind of jobs, by the kind's name.
        own: For jobs that launchers have registered, and for operators with a token of the supervisor.
        namespace: The namespace of such jobs.
    """

    people: People
    requests: ClusterRequests
    resources: Mapping[str, Resource]
    own: Steering
    namespace: str

    async def permit(self, who: Reader, asked: Asked) -> None:
        if isinstance(who, Person):
            access = self._access(asked)
            if not await self.people.may(who, access):
                raise DeniedError(f"{who.name} may not {access}.")
            return
        if self._resource(asked) is not None:
            raise DeniedError("This job is the cluster's: sign in with a token of the cluster.")
        await self.own.permit(who, asked)

    async def carry_out(self, by: str, asked: Asked) -> Sequence[Subject]:
        match asked:
            case SteerJob(job=job):
                resource = self._resource(asked)
                if resource is None:
                    return await self.own.carry_out(by, asked)
                with _taking(f"the job {bare_name(job)}"):
                    await self.requests.steer(resource, job, asked.kind, f"{by}: {asked.reason}")
            case DrainNode(node=node, lead=lead):
                with _taking(f"the node {node}"):
                    if lead is None:
                        await self.requests.undrain(node)
                    else:
                        await self.requests.drain(node, lead, f"{by}: {asked.reason}" if asked.reason else by)
            case HoldDrill(node=node, lead=lead):
                if node is None:
                    return await self.own.carry_out(by, asked)
                with _taking(f"the node {node}"):
                    await self.requests.drill(await self.requests.node(node), lead or 0.0, by)
        return []

    def _resource(self, asked: Asked) -> Resource | None:
        """The resource of the job that is asked about; None if a launcher has registered it, or it is about a node."""
        if not isinstance(asked, SteerJob) or kind_of(asked.job) == STANDALONE:
            return None
        resource = self.resources.get(kind_of(asked.job))
        if resource is None:
            raise NotTakenError(f"No kind of jobs is called {kind_of(asked.job)}.")
        return resource

    def _access(self, asked: Asked) -> Access:
        """The right that somebody needs who does the same with kubectl."""
        match asked:
            case SteerJob(job=job):
                return self._access_to_job(job, self._resource(asked))
            case DrainNode(node=node):
                return Access(verb="patch", group="", resource="nodes", name=node)
            case HoldDrill():
                return Access(
                    verb="create", group=EVENTS.group, resource=EVENTS.plural, namespace=NODE_EVENTS_NAMESPACE
                )

    def _access_to_job(self, job: JobName, resource: Resource | None) -> Access:
        if resource is None:
            return Access(verb="patch", group=READ.group, resource=READ.resource, namespace=self.namespace, name=job)
        return Access(
            verb="patch",
            group=resource.group,
            resource=resource.plural,
            namespace=namespace(job),
            name=bare_name(job),
        )


@contextmanager
def _taking(what: str) -> Iterator[None]:
    """Says why the API server does not take a change."""
    try:
        yield
    except NotFoundError as error:
        raise NotTakenError(f"There is no such object: {what}.") from error
    except RefusedError as error:
        raise NotTakenError(f"The supervisor may not change {what}: {error}.") from error
    except ApiUnavailableError as error:
        raise NotTakenError(f"It is not known whether {what} was changed: {error}.") from error
    except ApiError as error:
        raise NotTakenError(f"The change of {what} was not taken: {error}. Try again.") from error
