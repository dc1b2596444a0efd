"""Defines the interface through which the command reads and steers a supervisor or a cluster, and its values."""

from collections.abc import Awaitable, Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import msgspec

from servicekit.kubernetes.client import Resource
from supervisor.domain.ids import STANDALONE, JobName, kind_of, namespace
from supervisor.domain.job import RequestKind
from supervisor.domain.notice import SubjectKind
from supervisor.observability.views import (
    AgentView,
    CapacityView,
    GroupView,
    HostView,
    JobView,
    LeaderView,
    LedgerView,
    NoticeView,
    PoolCapacityView,
)

STREAMS_UNSEEN = (
    "which agents and processes are connected. Only the leading supervisor knows that; ask it with --address and "
    "--token-file."
)
"""Says, as a limit of a status, what no cluster shows."""


class SeenStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The whole status at one moment; `now` is Unix seconds. `unseen` lists in sentences what this backend cannot see.

    `unconfirmed` notices are announced but not stored yet, for example because the supervisor cannot write.
    `namespace` is the only one whose jobs are in it; empty for all.
    """

    now: float
    jobs: list[JobView]
    notices: list[NoticeView]
    unconfirmed: list[NoticeView] = []
    agents: list[AgentView] | None = None
    groups: list[GroupView] = []
    leader: LeaderView | None = None
    unseen: list[str] = []
    namespace: str = ""

    def find(self, name: str) -> Iterator[JobView]:
        """Finds jobs by the full name, by `namespace/name`, or by the name alone; each may begin with `job/`."""
        for wanted in (name, name.removeprefix("job/")):
            exact = [job for job in self.jobs if job.job == wanted]
            found = exact or [job for job in self.jobs if wanted in short_names(job.job)]
            if found:
                yield from found
                return

    @property
    def active(self) -> list[NoticeView]:
        """Returns the active notices, also those that are not stored yet."""
        return [notice for notice in self.by_id.values() if notice.active]

    @property
    def limits(self) -> list[str]:
        """Returns in sentences what nobody can see from here."""
        return [f"Not visible: {limit}" for limit in self.unseen]

    @property
    def by_id(self) -> Mapping[str, NoticeView]:
        """Maps ids to notices; an unconfirmed one is newer than a stored one of the same id."""
        return {notice.id: notice for notice in (*self.notices, *self.unconfirmed)}

    def hosts_of(self, job: JobView) -> list[HostView]:
        """Returns the hosts that a job holds; if it holds none, the nodes in its launcher's list."""
        if job.host_states or job.over or kind_of(job.job) != STANDALONE:
            return job.host_states
        noticed = {notice.subject: notice for notice in self.by_id.values() if notice.active and notice.acted_on}
        agents = None if self.agents is None else {agent.node for agent in self.agents if agent.connected}
        found = []
        for host in job.hosts:
            notice = noticed.get(host)
            found.append(
                HostView(
                    host=host,
                    node=host,
                    notice=None if notice is None else notice.id,
                    seconds_left=None if notice is None else notice.seconds_left,
                    agent=None if agents is None else host in agents,
                )
            )
        return found

    def concerned(self, kind: SubjectKind, subject: str) -> list[JobView]:
        """Returns the jobs that have a host on the subject (a node), or whose host it is (a pod)."""
        return [job for job in self.jobs if self.hosts_on(job, kind, subject)]

    def hosts_on(self, job: JobView, kind: SubjectKind, subject: str) -> list[HostView]:
        """Returns the hosts of a job on the subject (a node), or the host that it is (a pod)."""
        if kind is SubjectKind.POD:
            return [host for host in job.host_states if subject == pod_of(job, host)]
        return [host for host in job.host_states if subject == (host.node or host.host)]


def pod_of(job: JobView, host: HostView) -> str:
    """Returns the pod of a job's host as `namespace/name`. A kind may name its hosts in another way than their pods."""
    # The name of a pod that is not known here mostly is the host's.
    return f"{namespace(job.job)}/{host.host if host.pod is None else host.pod}"


def short_names(name: JobName) -> tuple[str, ...]:
    """Returns the short forms of `namespace/kind.name`: `namespace/name`, `name` and `kind.name`."""
    namespace, slash, resource = name.partition("/")
    bare = resource.partition(".")[2]
    return (f"{namespace}/{bare}", bare, resource) if slash else ()


class PastEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Describes one event of the history.

    `at` is in Unix seconds; `jobs` are the jobs that it concerned, and `concerns` the other subjects, as the record has
    them. `run` is 0 if it is about none.
    """

    at: float
    subject: str
    what: str
    text: str
    jobs: list[JobName] = []
    run: int = 0
    concerns: list[str] = []
    source: str = ""
    drill: bool = False


class PastQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which part of the past is wanted.

    `job`, `node` and `pool` exclude each other; None stands for all. `pool` is `CLOUD/ZONE/TYPE`. `since` is an instant
    (Unix seconds), None the beginning.
    """

    job: JobName | None = None
    node: str | None = None
    pool: str | None = None
    source: str | None = None
    since: float | None = None
    drills: bool = True
    limit: int = 1000

    @property
    def subjects(self) -> Sequence[tuple[str, str | None]]:
        """The kinds of subjects that may be named, each with its name; None if all are wanted."""
        return ("job", self.job), ("node", self.node), ("pool", self.pool)

    def wants(self, entry: PastEntry) -> bool:
        """Whether an entry is wanted, of whatever subject."""
        is_source = self.source is None or entry.source == self.source
        is_recent = self.since is None or entry.at >= self.since
        return is_source and is_recent and (self.drills or not entry.drill)


class Past(msgspec.Struct, frozen=True, kw_only=True):
    """The past that a backend knows beside its status.

    `since`: the instant (Unix seconds) at which the record of a supervisor begins, from which `entries` are, in the
    order of time; None if they are single decisions, such as Events tell. `is_cut`: its earliest are left out.
    """

    entries: Sequence[PastEntry] = ()
    since: float | None = None
    is_cut: bool = False


class DrillSubject(msgspec.Struct, frozen=True, kw_only=True):
    """The subject of a drill; `name` of a pod is `namespace/name`."""

    kind: SubjectKind
    name: str


class ReadableBackend(Protocol):
    """The part of a backend that shows jobs. Every method raises a `CliError` if it fails."""

    async def status(self) -> SeenStatus:
        """Reads the present status."""

    async def labelled(self, selector: str) -> Container[JobName]:
        """Lists the jobs whose objects have labels that match."""

    async def past(self, status: SeenStatus, wanted: PastQuery) -> Past:
        """Reads the past; adds a sentence to `unseen` of the status for each part that cannot be read."""


class Backend(ReadableBackend, Protocol):
    """A supervisor or a cluster. Every method raises a `CliError` if it fails."""

    async def manifest(self, resource: Resource, namespace: str, name: str) -> object | None:
        """Reads the object of a job, by default in the namespace of the context; None if the backend has no objects."""

    async def ledger(self, since: float, until: float | None, *, by_pool: bool = False) -> LedgerView:
        """Reads where worker-seconds went between two instants (Unix seconds) in whole hours; None is now.

        With `by_pool`, the jobs have `pools`.
        """

    async def capacity(self, job: JobName, since: float, until: float | None) -> CapacityView | None:
        """Reads which hosts were there for a job between two instants; None if the backend cannot know."""

    async def pool_capacity(self, pool: str, since: float, until: float | None) -> PoolCapacityView:
        """Reads which hosts of a pool (`CLOUD/ZONE/TYPE`) were there for any job between two instants."""

    async def subject(self, text: str) -> DrillSubject:
        """Resolves `node/NAME`, `pod/NAME` or `NAME`."""

    async def begin(self, subject: DrillSubject, lead: float, by: str) -> None:
        """Starts a drill or moves the deadline of an existing one; returns once a supervisor has accepted it."""

    async def ask(self, job: JobName, kind: RequestKind | None, by: str, reason: str) -> None:
        """Requests something of a job, or withdraws the request (None); returns once a supervisor knows of it."""

    async def drain(self, node: DrillSubject, lead: float, by: str, reason: str) -> None:
        """Drains a node, or changes the deadline and reason of a drain; returns once a supervisor has accepted it."""

    async def undrain(self, node: DrillSubject) -> None:
        """Ends the drain of a node. A node without a drain is not an error."""

    async def end(self, subject: DrillSubject | None) -> list[DrillSubject]:
        """Ends the drill on a subject early, or all drills; returns the subjects whose drill ended."""


HUB = "-"
"""The name of a hub among its members: no cluster has it."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Readings(Generic[T]):
    """Pairs the name of each cluster with what was read of it. The name is empty if the command reads one cluster only.

    `unseen` has a sentence for each cluster that could not be read.
    """

    found: Sequence[tuple[str, T]]
    unseen: Sequence[str] = ()

    @property
    def named(self) -> bool:
        """Whether there are several clusters, each with a name."""
        return any(cluster for cluster, _ in self.found)

    def limits(self, unseen: Callable[[T], Sequence[str]]) -> list[str]:
        """Returns in sentences what cannot be seen; a limit of all clusters is one sentence.

        Args:
            unseen: Returns the sentences of one cluster.
        """
        of: dict[str, list[str]] = {}
        for cluster, value in self.found:
            for sentence in unseen(value):
                of.setdefault(sentence, []).append(cluster)
        members = sum(cluster != HUB for cluster, _ in self.found)
        shared = [sentence for sentence, clusters in of.items() if len(clusters) >= members]
        single = [f"{', '.join(clusters)}: {each}" for each, clusters in of.items() if each not in shared]
        return [*shared, *single, *self.unseen]


class Clusters(Protocol):
    """The clusters that a command reads."""

    async def each(self, read: Callable[[ReadableBackend], Awaitable[T]]) -> Readings[T]:
        """Calls `read` for each cluster."""


@dataclass(frozen=True, slots=True)
class OneCluster:
    """Implements `Clusters` for a single backend, whose errors are those of the command."""

    backend: ReadableBackend

    async def each(self, read: Callable[[ReadableBackend], Awaitable[T]]) -> Readings[T]:
        return Readings([("", await read(self.backend))])
