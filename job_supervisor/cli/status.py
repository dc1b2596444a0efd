"""The status as the command shows it: decoded from `GET /v1/status`, or computed from a cluster's resources.

Times are seconds before or after the moment of the status. None stands for a value that the backend cannot see.
"""

from collections.abc import Container, Iterator, Mapping

import msgspec

from job_supervisor.cli.text import duration
from supervisor.domain.ids import STANDALONE, JobName, kind_of
from supervisor.domain.job import RequestKind
from supervisor.domain.notice import OPERATOR, SIMULATED, NoticeClass, NoticeState, SubjectKind


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """One host of a job. `agent`: its node's agent is connected; `stream`: a process on it receives directives."""

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
    """The last acknowledgement of rank 0, or of a `rank` whose save has failed."""

    run: int
    kind: str
    step: int | None = None
    age_seconds: float | None = None
    rank: int = 0
    error: str = ""
    resumes_from: int | None = None


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What a person asks of a job and has not taken back."""

    kind: RequestKind
    by: str
    reason: str = ""
    age_seconds: float = 0.0


class Prospect(msgspec.Struct, frozen=True, kw_only=True):
    """What comes next, and in how many seconds at the latest, if that is known."""

    what: str
    seconds: float | None = None


class MissingHost(msgspec.Struct, frozen=True, kw_only=True):
    """A host that a waiting job cannot start on, or a running one goes on without; `why` follows its name."""

    host: str
    lack: str
    why: str


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """The elastic agents of torchrun that train together; see `RoundView`."""

    number: int
    size: int
    in_process: bool = False


class Agreement(msgspec.Struct, frozen=True, kw_only=True):
    """The agreement of a job's ranks on a step; see `AgreementView`."""

    purpose: str
    step: int | None = None
    committed: bool = False
    waits_for: str = ""
    unread_seconds: float | None = None


class ConnectedRanks(msgspec.Struct, frozen=True, kw_only=True):
    """How many processes of the run are connected, how many of them know their rank, and how many are rank 0."""

    processes: int = 0
    ranked: int = 0
    zeros: int = 0

    @property
    def fault(self) -> str:
        """Why nobody can answer a STOP for the job, as a sentence; empty if rank 0 can, or if nothing is known."""
        if self.processes and not self.ranked:
            return f"No process is rank 0: none of the {self.processes} that are connected knows its rank."
        if self.processes and not self.zeros:
            return f"No process is rank 0: {self.processes} are connected, and none of them is it."
        if self.zeros > 1:
            return f"{self.zeros} processes say that they are rank 0: the first one to answer ends the run of all."
        return ""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One job; `seconds_left` is the time until the first of its noticed hosts is gone.

    `hosts` is the list of its launcher or operator. `host_states` are the hosts that it holds: none while it waits.
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
    on_loss: str = "shrink"
    worker_multiple: int = 1
    ignored: list[str] = []
    faults: list[str] = []
    hosts: list[str] = []
    age_seconds: float | None = None
    since_seconds: float | None = None
    seconds_left: float | None = None
    request: Request | None = None
    acknowledgement: Acknowledgement | None = None
    agreement: Agreement | None = None
    round: Round | None = None
    host_states: list[Host] = []
    prospects: list[Prospect] = []
    waits_for: str = ""
    shortfall: str = ""
    missing_hosts: list[MissingHost] = []
    checkpoint_seconds: float | None = None
    unread_seconds: float | None = None
    ranks: ConnectedRanks = ConnectedRanks()

    @property
    def namespace(self) -> str:
        """The namespace of a cluster's job; empty for a stand-alone one."""
        return self.job.rpartition("/")[0]

    @property
    def name(self) -> str:
        """The name within the namespace, with the kind of a cluster's job."""
        return self.job.rpartition("/")[2]

    @property
    def least_workers(self) -> int:
        """The fewest workers with which the job goes on, by what it wants on a loss."""
        if self.on_loss == "hold":
            return self.requested_workers
        return -(-self.min_workers // self.worker_multiple) * self.worker_multiple

    @property
    def over(self) -> bool:
        """Whether the job has ended for good."""
        return self.phase in ("Finished", "TimedOut")


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """One notice; `jobs` are the jobs that it concerns, `subject` of a pod is `namespace/name`.

    `acted_on`: its subject must not be used.
    """

    id: str
    source: str
    subject: str
    state: NoticeState
    kind: SubjectKind = SubjectKind.NODE
    seconds_left: float | None = None
    age_seconds: float | None = None
    ended_seconds: float | None = None
    message: str = ""
    jobs: list[JobName] = []
    notice_class: NoticeClass = NoticeClass.SUDDEN
    acted_on: bool = True
    cancellable: bool = False

    @property
    def active(self) -> bool:
        return self.state is NoticeState.ACTIVE

    @property
    def drill(self) -> bool:
        return self.source == SIMULATED

    @property
    def drain(self) -> bool:
        """Whether a person drains the subject."""
        return self.source == OPERATOR

    @property
    def is_drained(self) -> bool:
        """Whether a drain's time is over: the node stands empty until somebody ends the drain."""
        return self.drain and self.active and self.seconds_left == 0

    @property
    def going(self) -> str:
        """What becomes of the subject, according to whom, as a sentence without its subject and full stop."""
        when = "at an unknown time" if self.seconds_left is None else f"in {duration(self.seconds_left)}"
        if self.drain:
            by = f"drained by {self.message or 'an operator'}"
            return f"is {by}" if self.is_drained else f"is being {by}, and has to be empty {when}"
        return f"will be gone {when}, says {self.source}{' (a drill: the machine stays)' if self.drill else ''}"

    @property
    def ended(self) -> str:
        """Says that the notice has ended."""
        return "The drain has ended." if self.drain else f"The notice of {self.source} has ended."

    @property
    def source_label(self) -> str:
        """The source, and that it holds a drill or announces something that is not sudden."""
        if self.drill:
            return f"{self.source} (drill)"
        if self.drain:
            return f"{self.source} (drain)"
        return self.source if self.notice_class is NoticeClass.SUDDEN else f"{self.source} ({self.notice_class})"


class SourceAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The last answer of one source of an agent: clear, noticed, not_spot or unknown."""

    source: str
    state: str


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """The machine under a node, as far as its agent and labels tell it."""

    cloud: str | None = None
    region: str | None = None
    zone: str | None = None
    instance_type: str | None = None
    price_class: str | None = None
    spot_strategy: str | None = None
    protected_seconds: float | None = None


class Agent(msgspec.Struct, frozen=True, kw_only=True):
    """One node's agent; `reclaimed`: it is silent because its node is gone.

    `same_uid` are other nodes whose agents report the same machine uid.
    """

    node: str
    connected: bool
    reclaimed: bool = False
    silent_seconds: float | None = None
    same_uid: list[str] = []
    sources: list[SourceAnswer] = []
    machine: Machine | None = None


class Leader(msgspec.Struct, frozen=True, kw_only=True):
    """The supervisor that answered, and for how long it has served."""

    name: str
    serving_seconds: float


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """One decision that newly excluded hosts or stopped a job; docs/reference/wire.md explains the fields."""

    job: JobName
    outcome: str
    age_seconds: float
    reason: str
    acknowledged: str | None = None
    step: int | None = None
    steps_lost: int | None = None
    late: bool = False
    suspended: bool = False
    suspended_seconds: float | None = None
    rank: int = 0
    error: str = ""


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """Everything at one moment; `now` is Unix seconds. `unseen` lists in sentences what this backend cannot see.

    `unconfirmed` notices are announced but not stored yet, for example because the supervisor cannot write.
    """

    now: float
    jobs: list[Job]
    notices: list[Notice]
    unconfirmed: list[Notice] = []
    agents: list[Agent] | None = None
    groups: list[Group] = []
    leader: Leader | None = None
    unseen: list[str] = []

    def find(self, name: str) -> Iterator[Job]:
        """Finds jobs by the full name, by `namespace/name`, or by the name alone; each may begin with `job/`."""
        for wanted in (name, name.removeprefix("job/")):
            exact = [job for job in self.jobs if job.job == wanted]
            found = exact or [job for job in self.jobs if wanted in _short(job.job)]
            if found:
                yield from found
                return

    @property
    def active(self) -> list[Notice]:
        """The active notices, also those that are not stored yet."""
        return [notice for notice in self.by_id.values() if notice.active]

    @property
    def limits(self) -> list[str]:
        """Sentences about what cannot be seen."""
        return [f"Not visible: {limit}" for limit in self.unseen]

    @property
    def by_id(self) -> Mapping[str, Notice]:
        """The notices; an unconfirmed one is newer than a stored one of the same id."""
        return {notice.id: notice for notice in (*self.notices, *self.unconfirmed)}

    def hosts_of(self, job: Job) -> list[Host]:
        """The hosts that a job holds; if it holds none, the nodes in its launcher's list."""
        if job.host_states or job.over or kind_of(job.job) != STANDALONE:
            return job.host_states
        noticed = {notice.subject: notice for notice in self.by_id.values() if notice.active and notice.acted_on}
        agents = None if self.agents is None else {agent.node for agent in self.agents if agent.connected}
        return [_listed(host, noticed.get(host), agents) for host in job.hosts]

    def is_unconfirmed(self, notice: Notice) -> bool:
        """Whether the notice is not stored yet."""
        return any(notice is one for one in self.unconfirmed)

    def concerned(self, kind: SubjectKind, subject: str) -> list[Job]:
        """The jobs that have a host on that node, or whose host is that pod."""
        return [job for job in self.jobs if self.hosts_on(job, kind, subject)]

    def hosts_on(self, job: Job, kind: SubjectKind, subject: str) -> list[Host]:
        """The hosts of a job on that node, or the one that is that pod."""
        return [host for host in job.host_states if _is_on(host, job, kind, subject)]


def _short(name: JobName) -> tuple[str, ...]:
    """`namespace/kind.name` is also known as `namespace/name`, `name` and `kind.name`."""
    namespace, slash, resource = name.partition("/")
    bare = resource.partition(".")[2]
    return (f"{namespace}/{bare}", bare, resource) if slash else ()


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
