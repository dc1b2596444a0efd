"""Defines the schema of `GET /v1/status` and `GET /v1/history`, for the server and for clients.

docs/reference/wire.md explains each field. Times are seconds before or after `now` of the view, so that clients need no
synchronized clock. A field that an older supervisor does not send has a default, and a word that a newer one may add is
a plain `str`: a client shows it as it is. None stands for a value that is unknown, or that a client cannot see.
"""

import msgspec

from supervisor.decide.ranks import RankCounts
from supervisor.domain.ids import Host, JobName, NoticeId, Source
from supervisor.domain.job import RequestKind
from supervisor.domain.notice import OPERATOR, NoticeClass, NoticeState, SubjectKind
from supervisor.domain.stays import HostStay, WantedSpan


class LeaderView(msgspec.Struct, frozen=True, kw_only=True):
    """The supervisor that answers; `name` is that of its pod, empty outside of a cluster. `acts`: it may decide now."""

    name: str
    acts: bool = True
    serving_seconds: float
    version: str = ""


class AcknowledgementView(msgspec.Struct, frozen=True, kw_only=True):
    """The last acknowledgement of rank 0, or of a `rank` whose save has failed, with its `error`.

    `resumes_from`: the step of the last checkpoint before that, None if it is unknown.
    """

    run: int
    generation: int = 0
    kind: str
    step: int | None = None
    age_seconds: float | None = None
    rank: int = 0
    error: str = ""
    resumes_from: int | None = None


class AgreementView(msgspec.Struct, frozen=True, kw_only=True):
    """The agreement of a job's ranks on a step: polled (`step` is None), proposed or committed.

    `waits_for` names the ranks that have not answered. `unread_seconds`: for how long a rank has not asked whether to
    stop, at most; None if it is unknown.
    """

    purpose: str
    epoch: int = 0
    step: int | None = None
    committed: bool = False
    age_seconds: float = 0.0
    waits_for: str = ""
    unread_seconds: float | None = None


class RoundView(msgspec.Struct, frozen=True, kw_only=True):
    """The elastic agents of torchrun that train together, `size` of them; see `Round`."""

    number: int
    size: int
    in_process: bool = False
    age_seconds: float = 0.0


class HostView(msgspec.Struct, frozen=True, kw_only=True):
    """One host of a job. `worker`: it belongs to the current run and is not excluded.

    `pod` is the name of its pod; None for a machine, and where it is unknown. `agent`: its node's agent is connected;
    `stream`: a process on it receives directives. `notice` is its most urgent notice, whose deadline is `seconds_left`
    away, and was `overdue_seconds` ago. `gone_seconds`: how long ago that notice has ended with the host's end.
    """

    host: Host
    node: Host | None = None
    pod: str | None = None
    worker: bool = False
    launcher: bool = False
    excluded: bool = False
    notice: NoticeId | None = None
    seconds_left: float | None = None
    overdue_seconds: float | None = None
    gone_seconds: float | None = None
    agent: bool | None = None
    stream: bool | None = None

    @property
    def uncovered(self) -> bool:
        """Whether no agent would notice a reclaim of this worker, or nobody could tell its processes."""
        return self.worker and not (self.agent and self.stream)


class ProspectView(msgspec.Struct, frozen=True):
    """What comes next, as a sentence without capital and full stop, and in how many seconds if that is known."""

    what: str
    seconds: float | None = None


class MissingHostView(msgspec.Struct, frozen=True):
    """One host that a waiting job cannot start on; `why` is a sentence without capital and full stop."""

    host: Host
    lack: str
    why: str


class RequestView(msgspec.Struct, frozen=True, kw_only=True):
    """What a person requests of a job, and since when."""

    kind: RequestKind
    by: str
    reason: str = ""
    age_seconds: float = 0.0


class JobView(msgspec.Struct, frozen=True, kw_only=True):
    """One job. `age_seconds`: since it was registered.

    `since_seconds`: how long it has been in its phase; None if the phase began before this supervisor.

    `seconds_left`: the time until the first of its noticed hosts is gone; it was due `overdue_seconds` ago.
    `simulated`: one of its notices is a drill.
    `waits_for` says what a waiting job lacks, `shortfall` why a running one uses fewer hosts than it requested.
    `fixed_hosts`: its run cannot go on without one of its hosts; None if an older supervisor does not say so.
    `gang` says in a sentence which gang has set `min_workers`; it is empty if none has.
    `ignored` has a sentence for each request of the job that was not understood, `faults` one for each part of the
    supervisor that fails on this job. `host_count` counts all its hosts,
    including its launcher's; `hosts`, `workers`, `exclusions` and `host_states` contain the hosts on this page.
    """

    job: JobName
    phase: str
    age_seconds: float | None = None
    since_seconds: float | None = None
    reason: str
    generation: int = 0
    run: int
    running: bool
    result: str | None = None
    restarts: int = 0
    framework: str = ""
    host_count: int = 0
    hosts: list[Host] = []
    workers: list[Host]
    exclusions: list[Host]
    min_workers: int
    max_workers: int
    requested_workers: int = 0
    on_loss: str = "shrink"
    worker_multiple: int = 1
    fixed_hosts: bool | None = None
    gang: str = ""
    ignored: list[str] = []
    faults: list[str] = []
    seconds_left: float | None = None
    overdue_seconds: float | None = None
    simulated: bool = False
    request: RequestView | None = None
    acknowledgement: AcknowledgementView | None = None
    agreement: AgreementView | None = None
    round: RoundView | None = None
    prospects: list[ProspectView] = []
    waits_for: str = ""
    shortfall: str = ""
    missing_hosts: list[MissingHostView] = []
    step_seconds: float | None = None
    checkpoint_seconds: float | None = None
    unread_seconds: float | None = None
    ranks: RankCounts = RankCounts()
    host_states: list[HostView] = []

    @property
    def lacks(self) -> str:
        """The hosts that it waits for, or has no use of in its run, in sentences; empty if it lacks none."""
        return self.waits_for or self.shortfall

    @property
    def over(self) -> bool:
        """Whether the job has ended for good."""
        return self.phase in ("Finished", "TimedOut")


class NoticeView(msgspec.Struct, frozen=True, kw_only=True):
    """One notice; `jobs` are the jobs that it concerns while it is active. `simulated`: it is a drill.

    `acted_on`: it is active, and its subject must not be used, which a scheduled one comes to and a hint never does.
    `cancellable`: the cloud can still call it off. `overdue_seconds`: how long ago its time was over; None while it is
    not.
    """

    id: NoticeId
    episode: int = 0
    source: Source
    subject: str
    kind: SubjectKind = SubjectKind.NODE
    state: NoticeState
    seconds_left: float | None = None
    overdue_seconds: float | None = None
    age_seconds: float | None = None
    ended_seconds: float | None = None
    simulated: bool = False
    jobs: list[JobName] = []
    announced: str = ""
    message: str = ""
    notice_class: NoticeClass = NoticeClass.SUDDEN
    acted_on: bool = True
    cancellable: bool = False

    @property
    def active(self) -> bool:
        return self.state is NoticeState.ACTIVE

    @property
    def drains(self) -> bool:
        """Whether a person drains the subject."""
        return self.source == OPERATOR


class SourceView(msgspec.Struct, frozen=True):
    """The last answer of one source of an agent."""

    source: Source
    state: str


class MachineView(msgspec.Struct, frozen=True, kw_only=True):
    """The machine under a node, see `Machine`; `protected_seconds` is None if the cloud promises nothing."""

    cloud: str = ""
    region: str = ""
    zone: str = ""
    instance_type: str = ""
    price_class: str = "unknown"
    spot_strategy: str = ""
    protected_seconds: float | None = None


class AgentView(msgspec.Struct, frozen=True, kw_only=True):
    """One node's agent; `silent_seconds` is None while it is connected. `reclaimed`: silent because its node is gone.

    `same_uid` are the other nodes whose agents report the same machine uid. `machine` is None if it is unknown.
    """

    node: Host
    connected: bool
    reclaimed: bool = False
    silent_seconds: float | None = None
    same_uid: list[Host] = []
    sources: list[SourceView] = []
    pod_sources: list[SourceView] = []
    machine: MachineView | None = None


class GroupView(msgspec.Struct, frozen=True, kw_only=True):
    """One decision that newly excluded hosts or stopped a job, and its outcome. `id` names it: its instant and its job.

    `decided_after_seconds` counts from the first notice; None if there was none. `margin_seconds` is the time from rank
    0's answer to the first deadline; a negative one is too late. `late` is true then, and if the job was suspended
    after that deadline without an answer. `suspended_seconds` grows while `suspended`. `step` is the step that rank 0
    saved, or `rank` could not save because of `error`; `steps_lost` a lower bound of the steps that the next run
    repeats, None if it is unknown.
    `released_gpu_seconds` are those that others could use during the suspension, None if the GPUs are unknown.
    """

    job: JobName
    outcome: str
    age_seconds: float
    reason: str
    sources: list[Source] = []
    subjects: list[Host] = []
    simulated: bool = False
    decided_after_seconds: float | None = None
    acknowledged: str | None = None
    step: int | None = None
    steps_lost: int | None = None
    margin_seconds: float | None = None
    late: bool = False
    suspended: bool = False
    suspended_seconds: float | None = None
    released_gpu_seconds: float | None = None
    cause: str = "reclaim"
    rank: int = 0
    error: str = ""
    id: str = ""


class CoverageView(msgspec.Struct, frozen=True, kw_only=True):
    """How many workers of running jobs a reclaim would not reach, and how many agents are connected or silent.

    `agents_reclaimed` are silent because their nodes are gone, `agents_unknown` for an unknown reason.
    """

    workers: int
    without_agent: int
    without_stream: int
    agents_connected: int
    agents_unknown: int
    agents_reclaimed: int


class RefusedView(msgspec.Struct, frozen=True):
    """How many messages were refused for this reason since the start."""

    wire: str
    code: str
    count: int


class StatusView(msgspec.Struct, frozen=True, kw_only=True):
    """The whole status or a page of it; `now` is Unix seconds. `unconfirmed` notices are not stored yet.

    `next` is the position of the next page; None on the last one. `groups` are on the first page only.
    """

    now: float
    leader: LeaderView
    jobs: list[JobView]
    notices: list[NoticeView]
    unconfirmed: list[NoticeView]
    groups: list[GroupView]
    coverage: CoverageView
    agents: list[AgentView]
    refused: list[RefusedView]
    next: str | None


class HistoryEntryView(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that happened at an instant (Unix seconds); `subject` is `job/NAME`, `node/NAME` or `pod/NS/NAME`."""

    at: float
    subject: str
    what: str
    text: str
    run: int = 0
    concerns: tuple[str, ...] = ()
    source: str = ""
    drill: bool = False


class HistoryView(msgspec.Struct, frozen=True, kw_only=True):
    """The latest of the wanted history, the earliest entry first. Nothing is known from before the instant `since`.

    `cut`: earlier entries are left out; `next` is the `before` with which they are asked for.
    """

    since: float
    entries: list[HistoryEntryView]
    cut: bool = False
    next: str | None = None


class HeldView(msgspec.Struct, frozen=True, kw_only=True):
    """The worker-seconds that a job held on one kind of machine, see `HeldOn`; unknown fields are empty."""

    cloud: str = ""
    zone: str = ""
    instance_type: str = ""
    price_class: str = "unknown"
    gpus: float | None = None
    worker_seconds: float


class PoolView(msgspec.Struct, frozen=True, kw_only=True):
    """The worker-seconds that a job held in one pool, by account; unknown fields of the pool are empty.

    `went`: how often one of its hosts there went; `noticed`: how often with a notice.
    """

    cloud: str = ""
    zone: str = ""
    instance_type: str = ""
    price_class: str = "unknown"
    worker_seconds: dict[str, float]
    went: int = 0
    noticed: int = 0


class LedgerJobView(msgspec.Struct, frozen=True, kw_only=True):
    """The worker-seconds of a job by account; one that is left out has none. `machines` are those that it held.

    `pools` are the same by account as well, if they were asked for.
    """

    job: JobName
    worker_seconds: dict[str, float]
    machines: list[HeldView] = []
    pools: list[PoolView] = []


_UNCOUNTED_SECONDS = 60.0
"""A gap that is worth a sentence: a failover takes seconds."""


class LedgerView(msgspec.Struct, frozen=True, kw_only=True):
    """Where worker-seconds went between two instants (Unix seconds), `since` at the beginning of an hour.

    `counted_seconds`: for how much of that time a supervisor has counted. What was in the rest of it is not known.
    """

    since: float
    until: float
    counted_seconds: float
    jobs: list[LedgerJobView]

    @property
    def uncounted(self) -> float | None:
        """The seconds of which nothing is known; None if they are too few to be worth a sentence."""
        seconds = self.until - self.since - self.counted_seconds
        return seconds if seconds > _UNCOUNTED_SECONDS else None


class PoolCapacityView(msgspec.Struct, frozen=True, kw_only=True):
    """Which hosts of a pool (`CLOUD/ZONE/TYPE`) were there between two instants, by the job that used them.

    Stays have ends. `cut`: the earliest are left out, and `since` is when the last of these has ended.
    """

    pool: str
    since: float
    until: float
    stays: dict[JobName, list[HostStay]]
    cut: bool = False


class CapacityView(msgspec.Struct, frozen=True, kw_only=True):
    """When a job wanted workers, and which hosts were there for it, between two instants. Stays have ends.

    `cut`: the earliest are left out. In a time without a span, nothing is known or nothing was wanted.
    """

    job: JobName
    since: float
    until: float
    spans: list[WantedSpan]
    stays: list[HostStay]
    cut: bool = False
