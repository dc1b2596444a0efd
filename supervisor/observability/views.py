"""The status as `GET /v1/status` and the page show it; docs/reference/wire.md explains each field.

Times are seconds before or after `now` of the view, so that clients need no synchronized clock.
"""

from dataclasses import dataclass

from supervisor.decide.explanation import Lack
from supervisor.decide.ranks import RankCounts
from supervisor.domain.agreement import Purpose
from supervisor.domain.capacity import PriceClass
from supervisor.domain.ids import Host, JobName, NoticeId, Source
from supervisor.domain.job import AcknowledgementKind, Framework, OnLoss, Phase, RequestKind, Result
from supervisor.domain.notice import NoticeClass, NoticeState, SubjectKind
from supervisor.ingest.agent_registry import SourceState
from supervisor.observability.groups import GroupCause, GroupOutcome
from supervisor.refusals import Code, Wire


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderView:
    """The supervisor that answers; `name` is its pod's, empty outside of a cluster. `acts`: it may decide now."""

    name: str
    acts: bool
    serving_seconds: float
    version: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AcknowledgementView:
    """The last acknowledgement of rank 0, or of a `rank` whose save has failed, with its `error`.

    `resumes_from`: the step of the last checkpoint before that, None if it is unknown.
    """

    run: int
    generation: int
    kind: AcknowledgementKind
    step: int | None
    age_seconds: float
    rank: int = 0
    error: str = ""
    resumes_from: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AgreementView:
    """The agreement of a job's ranks on a step, as it is asked for (`step` None), proposed or committed.

    `waits_for` names the ranks that have not answered. `unread_seconds`: for how long a rank has not asked whether to
    stop, at most; None if it is unknown.
    """

    purpose: Purpose
    epoch: int
    step: int | None
    committed: bool
    age_seconds: float
    waits_for: str
    unread_seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundView:
    """The elastic agents of torchrun that train together, `size` of them; see `Round`."""

    number: int
    size: int
    in_process: bool
    age_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HostView:
    """One host of a job. `worker`: it belongs to the current run and is not excluded.

    `agent`: its node's agent is connected; `stream`: a process on it receives directives. `notice` is its most urgent
    notice, whose deadline is `seconds_left` away.
    """

    host: Host
    node: Host
    worker: bool
    launcher: bool
    excluded: bool
    notice: NoticeId | None
    seconds_left: float | None
    agent: bool
    stream: bool

    @property
    def uncovered(self) -> bool:
        """Whether a reclaim of this worker would not be noticed, or its processes could not be told."""
        return self.worker and not (self.agent and self.stream)


@dataclass(frozen=True, slots=True)
class ProspectView:
    """What comes next, as a sentence without capital and full stop, and in how many seconds if that is known."""

    what: str
    seconds: float | None


@dataclass(frozen=True, slots=True)
class MissingHostView:
    """One host that a waiting job cannot start on; `why` is a sentence without capital and full stop."""

    host: Host
    lack: Lack
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestView:
    """What a person asks of a job, and since when."""

    kind: RequestKind
    by: str
    reason: str
    age_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """One job. `age_seconds`: since it was registered.

    `since_seconds`: how long it has been in its phase; None if the phase began before this supervisor.

    `seconds_left`: the time until the first of its noticed hosts is gone. `simulated`: one of its notices is a drill.
    `waits_for` says what a waiting job lacks, `shortfall` why a running one uses fewer hosts than it requested.
    `ignored` has a sentence for each request of the job that was not understood, `faults` one for each part of the
    supervisor that fails on this job. `host_count` counts all its hosts,
    including its launcher's; `hosts`, `workers`, `exclusions` and `host_states` contain the hosts on this page.
    """

    job: JobName
    phase: Phase
    age_seconds: float
    since_seconds: float | None
    reason: str
    generation: int
    run: int
    running: bool
    result: Result | None
    restarts: int
    framework: Framework
    host_count: int
    hosts: list[Host]
    workers: list[Host]
    exclusions: list[Host]
    min_workers: int
    max_workers: int
    requested_workers: int
    on_loss: OnLoss
    worker_multiple: int
    ignored: list[str]
    faults: list[str]
    seconds_left: float | None
    simulated: bool
    request: RequestView | None
    acknowledgement: AcknowledgementView | None
    agreement: AgreementView | None
    round: RoundView | None
    prospects: list[ProspectView]
    waits_for: str
    shortfall: str
    missing_hosts: list[MissingHostView]
    step_seconds: float | None
    checkpoint_seconds: float | None
    unread_seconds: float | None
    ranks: RankCounts
    host_states: list[HostView]


@dataclass(frozen=True, slots=True, kw_only=True)
class NoticeView:
    """One notice; `jobs` are the jobs that it concerns while it is active. `simulated`: it is a drill.

    `acted_on`: it is active, and its subject must not be used, which a scheduled one comes to and a hint never does.
    `cancellable`: the cloud can still call it off.
    """

    id: NoticeId
    episode: int
    source: Source
    subject: str
    kind: SubjectKind
    state: NoticeState
    seconds_left: float | None
    age_seconds: float
    ended_seconds: float | None
    simulated: bool
    jobs: list[JobName]
    announced: str
    message: str
    notice_class: NoticeClass
    acted_on: bool
    cancellable: bool


@dataclass(frozen=True, slots=True)
class SourceView:
    """The last answer of one source of an agent."""

    source: Source
    state: SourceState


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineView:
    """The machine under a node, see `Machine`; `protected_seconds` is None if the cloud promises nothing."""

    cloud: str
    region: str
    zone: str
    instance_type: str
    price_class: PriceClass
    spot_strategy: str
    protected_seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentView:
    """One node's agent; `silent_seconds` is None while it is connected. `reclaimed`: silent because its node is gone.

    `same_uid` are the other nodes whose agents report the same machine uid. `machine` is None if it is unknown.
    """

    node: Host
    connected: bool
    reclaimed: bool
    silent_seconds: float | None
    same_uid: list[Host]
    sources: list[SourceView]
    pod_sources: list[SourceView]
    machine: MachineView | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    """One decision that newly excluded hosts or stopped a job, and its outcome.

    `decided_after_seconds` counts from the first notice; None if there was none. `margin_seconds` is the time from rank
    0's answer to the first deadline; a negative one is too late. `late` is true then, and if the job was suspended
    after that deadline without an answer. `suspended_seconds` grows while `suspended`. `step` is the step that rank 0
    saved, or `rank` could not save because of `error`; `steps_lost` a lower bound of the steps that the next run
    repeats, None if it is unknown.
    `released_gpu_seconds` are those that others could use during the suspension, None if the GPUs are unknown.
    """

    job: JobName
    outcome: GroupOutcome
    age_seconds: float
    reason: str
    sources: list[Source]
    subjects: list[Host]
    simulated: bool
    decided_after_seconds: float | None
    acknowledged: AcknowledgementKind | None
    step: int | None
    steps_lost: int | None
    margin_seconds: float | None
    late: bool
    suspended: bool
    suspended_seconds: float | None
    released_gpu_seconds: float | None = None
    cause: GroupCause = GroupCause.RECLAIM
    rank: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoverageView:
    """How many workers of running jobs a reclaim would not reach, and how many agents are connected or silent.

    `agents_reclaimed` are silent because their nodes are gone, `agents_unknown` for an unknown reason.
    """

    workers: int
    without_agent: int
    without_stream: int
    agents_connected: int
    agents_unknown: int
    agents_reclaimed: int


@dataclass(frozen=True, slots=True)
class RefusedView:
    """How many messages were refused for this reason since the start."""

    wire: Wire
    code: Code
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusView:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryEntryView:
    """One thing that happened at an instant (Unix seconds); `subject` is `job/NAME`, `node/NAME` or `pod/NS/NAME`."""

    at: float
    subject: str
    what: str
    text: str
    run: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryView:
    """What happened, the earliest first, in full since the instant `since`. `cut`: the earliest are left out."""

    since: float
    entries: list[HistoryEntryView]
    cut: bool
