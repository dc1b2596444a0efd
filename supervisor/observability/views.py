"""The status as `GET /v1/status` and the page show it; docs/reference/wire.md explains each field.

Times are seconds from or until the view's `now`: whoever shows them counts on by a clock of its own.
"""

from dataclasses import dataclass

from supervisor.domain.ids import Host, JobName, NoticeId, Source
from supervisor.domain.job import AcknowledgementKind, Framework, Phase, Result
from supervisor.domain.notice import NoticeState, SubjectKind
from supervisor.ingest.agent_registry import SourceState
from supervisor.observability.groups import GroupOutcome
from supervisor.refusals import Code, Wire


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderView:
    """Who says this; `name` is its pod's, empty outside of a cluster. `acts`: it may decide at this moment."""

    name: str
    acts: bool
    serving_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AcknowledgementView:
    """Rank 0's last answer to a directive."""

    run: int
    generation: int
    kind: AcknowledgementKind
    step: int | None
    age_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HostView:
    """One host of a job. `worker`: it belongs to the run that goes on and is not excluded.

    `agent`: its node's agent is connected; `stream`: a process on it hears directives. `notice` is its most urgent one,
    whose end is `seconds_left` away where the source names a time.
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
        """A reclaim of this worker would go unseen, or what is decided about it unheard."""
        return self.worker and not (self.agent and self.stream)


@dataclass(frozen=True, slots=True)
class ProspectView:
    """What comes next, as a sentence without capital and full stop; `seconds` until then where that is known."""

    what: str
    seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """One job. `since_seconds`: how long it has been in its phase; None where that began before anybody looked.

    `seconds_left`: until the first of its noticed hosts is gone. `simulated`: one of its notices is a drill.
    `host_count` counts all its hosts, its launcher's among them; `hosts`, `workers`, `exclusions` and `host_states`
    have those that are on the page.
    """

    job: JobName
    phase: Phase
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
    seconds_left: float | None
    simulated: bool
    acknowledgement: AcknowledgementView | None
    prospects: list[ProspectView]
    host_states: list[HostView]


@dataclass(frozen=True, slots=True, kw_only=True)
class NoticeView:
    """One notice; `jobs` are those it concerns while it is active. `simulated`: a drill."""

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


@dataclass(frozen=True, slots=True)
class SourceView:
    """What one source of an agent last said."""

    source: Source
    state: SourceState


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentView:
    """One node's agent; `silent_seconds` is None while it is connected. `reclaimed`: silent, as its node is gone.

    `same_uid` are the other nodes whose agents say that their machine has the uid of this one's.
    """

    node: Host
    connected: bool
    reclaimed: bool
    silent_seconds: float | None
    same_uid: list[Host]
    sources: list[SourceView]
    pod_sources: list[SourceView]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    """One decision that newly excluded hosts or stopped a job, and what became of it.

    `decided_after_seconds`: from the first of its notices; None where none made it. `margin_seconds`: what was left
    until the first of its hosts would be gone when rank 0 had answered; below 0 is too late, and `late` is true then,
    as it is where the job was suspended after that instant without an answer. `suspended_seconds` counts
    while `suspended`, and stays afterwards. `step` is what rank 0 had saved; `steps_lost` what
    the next run has to do again at least, None where nobody says it.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class CoverageView:
    """Who would not be reached by a reclaim: of all workers of running jobs, and of the agents.

    `agents_reclaimed` are silent because their nodes are gone; why those of `agents_unknown` are is not known.
    """

    workers: int
    without_agent: int
    without_stream: int
    agents_connected: int
    agents_unknown: int
    agents_reclaimed: int


@dataclass(frozen=True, slots=True)
class RefusedView:
    """How often that was refused since the start."""

    wire: Wire
    code: Code
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusView:
    """Everything at once, or a page of it; `now` is Unix seconds. `unconfirmed` notices are not durable yet.

    `next` is where the page after this one begins, None where none does. `groups` are on the first page alone.
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
