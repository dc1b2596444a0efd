"""What there is to know, wherever it is asked: as `GET /v1/status` says it, or read from a cluster's resources.

Times are seconds from or until the moment of the view. None stands for what cannot be seen from where one looks.
"""

from collections.abc import Container, Iterator, Mapping

import msgspec

from supervisor.domain.ids import STANDALONE, JobName, kind_of
from supervisor.domain.notice import SIMULATED, NoticeState, SubjectKind


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """One host of a job. `agent`: its node's agent is connected; `stream`: a process on it hears directives."""

    host: str
    node: str | None = None
    worker: bool = False
    launcher: bool = False
    excluded: bool = False
    notice: str | None = None
    seconds_left: float | None = None
    agent: bool | None = None
    stream: bool | None = None


class Acknowledgement(msgspec.Struct, frozen=True, kw_only=True):
    """Rank 0's last answer."""

    run: int
    kind: str
    step: int | None = None
    age_seconds: float | None = None


class Prospect(msgspec.Struct, frozen=True, kw_only=True):
    """What comes next, and in how many seconds at the latest where that is known."""

    what: str
    seconds: float | None = None


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One job; `seconds_left` is until the first of its noticed hosts is gone.

    `hosts` is the list of its launcher or operator, and `host_states` are those that it holds: none while it waits.
    """

    job: JobName
    phase: str
    reason: str
    run: int
    running: bool
    workers: list[str]
    exclusions: list[str]
    min_workers: int
    max_workers: int
    requested_workers: int = 0
    hosts: list[str] = []
    since_seconds: float | None = None
    seconds_left: float | None = None
    acknowledgement: Acknowledgement | None = None
    host_states: list[Host] = []
    prospects: list[Prospect] = []

    @property
    def over(self) -> bool:
        """Nothing will be done to it any more."""
        return self.phase in ("Finished", "TimedOut")


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """One notice; `jobs` are those that it concerns, `subject` of a pod is `namespace/name`."""

    id: str
    source: str
    subject: str
    state: NoticeState
    kind: SubjectKind = SubjectKind.NODE
    seconds_left: float | None = None
    age_seconds: float | None = None
    message: str = ""
    jobs: list[JobName] = []

    @property
    def active(self) -> bool:
        """Announced, and not over."""
        return self.state is NoticeState.ACTIVE

    @property
    def drill(self) -> bool:
        """Nothing is really reclaimed."""
        return self.source == SIMULATED


class Agent(msgspec.Struct, frozen=True, kw_only=True):
    """One node's agent; `reclaimed`: it is silent, as its node is gone.

    `same_uid` are other nodes whose agents say the uid of this one's machine.
    """

    node: str
    connected: bool
    reclaimed: bool = False
    same_uid: list[str] = []


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """Everything at one moment; `now` is Unix seconds. `unseen` says in sentences what cannot be seen from here.

    `unconfirmed` notices are announced and not stored yet, as while the supervisor cannot write.
    """

    now: float
    jobs: list[Job]
    notices: list[Notice]
    unconfirmed: list[Notice] = []
    agents: list[Agent] | None = None
    unseen: list[str] = []

    def find(self, name: str) -> Iterator[Job]:
        """The jobs that somebody may mean: by the whole name, by `namespace/name`, or by the name alone."""
        exact = [job for job in self.jobs if job.job == name]
        yield from exact or (job for job in self.jobs if name in _short(job.job))

    @property
    def by_id(self) -> Mapping[str, Notice]:
        """The notices; an unconfirmed one is newer than a stored one of the same id."""
        return {notice.id: notice for notice in (*self.notices, *self.unconfirmed)}

    def hosts_of(self, job: Job) -> list[Host]:
        """The hosts that it holds; where it holds none, the nodes that the list of its launcher names."""
        if job.host_states or job.over or kind_of(job.job) != STANDALONE:
            return job.host_states
        noticed = {notice.subject: notice for notice in self.by_id.values() if notice.active}
        agents = None if self.agents is None else {agent.node for agent in self.agents if agent.connected}
        return [_listed(host, noticed.get(host), agents) for host in job.hosts]

    def is_unconfirmed(self, notice: Notice) -> bool:
        """Whether it is not stored yet."""
        return any(notice is each for each in self.unconfirmed)

    def concerned(self, kind: SubjectKind, subject: str) -> list[Job]:
        """The jobs that have a host on that node, or that pod for one."""
        return [job for job in self.jobs if self.hosts_on(job, kind, subject)]

    def hosts_on(self, job: Job, kind: SubjectKind, subject: str) -> list[Host]:
        """Those hosts of a job."""
        return [host for host in job.host_states if _is_on(host, job, kind, subject)]


def _short(name: JobName) -> tuple[str, ...]:
    """`namespace/kind.name` is also known as `namespace/name` and as `name`."""
    namespace, slash, resource = name.partition("/")
    bare = resource.partition(".")[2]
    return (f"{namespace}/{bare}", bare) if slash else ()


def _listed(host: str, notice: Notice | None, agents: Container[str] | None) -> Host:
    return Host(
        host=host,
        node=host,
        notice=None if notice is None else notice.id,
        seconds_left=None if notice is None else notice.seconds_left,
        agent=None if agents is None else host in agents,
    )


def _is_on(host: Host, job: Job, kind: SubjectKind, subject: str) -> bool:
    if kind is SubjectKind.POD:
        return subject == f"{job.job.partition('/')[0]}/{host.host}"
    return subject == (host.node or host.host)
