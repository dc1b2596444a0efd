"""Defines SupervisedJob: the specification of a job, the facts about it, and the decision."""

from dataclasses import dataclass, replace
from enum import StrEnum

from supervisor.domain.agreement import Agreement, Purpose, Round
from supervisor.domain.ids import Host, Instant, JobId, JobName


class Capability(StrEnum):
    """One capability of a job, as its kind declares it. A job without any is run by our own launcher."""

    MAKES_HOSTS = "MakesHosts"
    """The controller makes the hosts, and all hosts that it lists are the job's at once."""
    STARTS_RUNS = "StartsRuns"
    """The controller starts the first run, and restarts a run that failed by itself."""
    GROWS = "Grows"
    """The controller can be asked to add workers to a running run."""
    REPLACES_HOSTS = "ReplacesHosts"
    """The controller replaces a host that is removed."""
    FIXED_HOSTS = "FixedHosts"
    """A run cannot go on without one of its hosts: it stops when one leaves, and resumes on others."""
    SIGNALS_PODS = "SignalsPods"
    """Processes without a stream can be reached through their pods."""
    MOVES = "Moves"
    """A hub of many clusters made the job, and is to move it to another one instead of its timing out in this one."""


ELASTIC = frozenset(Capability) - {Capability.FIXED_HOSTS, Capability.MOVES}
"""All capabilities of a controller whose runs go on with other hosts."""


class Framework(StrEnum):
    """How a job reacts to a shorter host list: survivors continue (horovod) or restart from a checkpoint (torchrun)."""

    HOROVOD = "horovod"
    TORCHRUN = "torchrun"


class OnLoss(StrEnum):
    """Says what a job wants if it loses workers.

    SHRINK: it continues with those that remain, if they are enough. HOLD: its number of workers is fixed, so it saves,
    waits for a replacement and continues with all of them.
    """

    SHRINK = "shrink"
    HOLD = "hold"


class Phase(StrEnum):
    """The phase of a job.

    `Waiting → Running → Shrinking → Running`; `Running|Shrinking|Resuming → Stopping → Suspended → Resuming → Running`;
    `Waiting|Suspended → TimedOut`; `Waiting|Stopping|Suspended|Resuming → Queued → Waiting`; any → `Finished`.
    """

    QUEUED = "Queued"
    WAITING = "Waiting"
    RUNNING = "Running"
    SHRINKING = "Shrinking"
    STOPPING = "Stopping"
    SUSPENDED = "Suspended"
    RESUMING = "Resuming"
    TIMED_OUT = "TimedOut"
    FINISHED = "Finished"


WAITS = (Phase.WAITING, Phase.SUSPENDED)
"""The phases in which a job waits for capacity."""


class Result(StrEnum):
    """How a job ended, as its launcher reported."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TERMINATED = "terminated"
    TIMED_OUT = "timed_out"


class AcknowledgementKind(StrEnum):
    """How rank 0 has answered a STOP.

    SAVED: a checkpoint is on disk. KEPT: hosts that stay have the state in memory. LEFT: rank 0 is in its exit hook.
    FAILED: a checkpoint could not be saved.
    """

    SAVED = "saved"
    KEPT = "kept"
    LEFT = "left"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class GangMinimum:
    """The fewest hosts of a job that a gang scheduler starts together.

    Attributes:
        workers: The number of hosts, at most those that the job has requested.
        pods: The number of pods, as it is written.
        source: What says so, as the subject of a sentence.
        group: The name of the PodGroup that says so; empty if the job itself does.
    """

    workers: int
    pods: int
    source: str
    group: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """The specification of a job. Workers are hosts, not slots; `max_wait_seconds` 0 means for ever.

    `least_to_start`: the fewest hosts that a run starts on, if those are more than `min_workers`, with which a run may
    continue.
    `worker_multiple`: every size of a run is a multiple of it, and so is `requested_workers`; it is the product of the
    tensor and pipeline parallel sizes, in hosts. `supervisor.decide.grant` has the sizes that follow from all of these.
    `ignored`: a sentence for each request of the job that was not understood. `refused`: the job is beyond a bound,
    which `ignored` names, so its sizes are unknown and nothing is planned for it.
    `gang`: the minimum of its gang, below which `min_workers` is never; None if nobody demands one.
    """

    framework: Framework
    min_workers: int
    max_workers: int
    requested_workers: int
    max_wait_seconds: float = 0.0
    launcher_host: Host | None = None
    capabilities: frozenset[Capability] = frozenset()
    least_to_start: int | None = None
    on_loss: OnLoss = OnLoss.SHRINK
    worker_multiple: int = 1
    ignored: tuple[str, ...] = ()
    refused: bool = False
    gang: GangMinimum | None = None

    def can(self, capability: Capability) -> bool:
        """Whether the job has a capability."""
        return capability in self.capabilities

    @property
    def start_workers(self) -> int:
        """The fewest hosts that a run starts on."""
        return self.min_workers if self.least_to_start is None else self.least_to_start


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledgement:
    """Rank 0's answer to the directive of `generation`.

    FAILED may also come from another rank whose save the job needs.

    `error` is why nothing was saved, `has_left` whether the process exits then and so does not try again.
    `resumes_from` is the step of the last checkpoint before the failed one, None if it is unknown.
    """

    run: int
    generation: int
    kind: AcknowledgementKind
    step: int | None = None
    at: Instant
    rank: int = 0
    error: str = ""
    has_left: bool = False
    resumes_from: int | None = None


class RequestKind(StrEnum):
    """SUSPEND: save, and start no other run. STOP: save, and end the job for good."""

    SUSPEND = "suspend"
    STOP = "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class UserRequest:
    """A person's request to a job, which nobody has withdrawn. `by` and `reason` are for people."""

    kind: RequestKind
    by: str
    reason: str = ""
    at: Instant


NO_CHECKPOINT = "none"
"""Stands for an unknown step where a hub needs some value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HubMarks:
    """What a job's object tells the hub of many clusters that has made it.

    `given_up`: this cluster has no capacity for the job, so the hub is to place it in another one. `checkpoint` is the
    step that the next run starts from, or `NO_CHECKPOINT` if it is unknown; it is empty while the object says neither.
    `moved`: the hub has moved the job here, and waits until the object says `checkpoint`.
    """

    given_up: bool = False
    checkpoint: str = ""
    moved: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """The facts, as the launcher and rank 0 last reported them, or as a cluster shows them.

    `hosts` is the host list without exclusions; `applied` the generation of the last order that is in place. `ending`:
    the launcher was asked to end the job, and starts no further run. `launcher_lost_since` is when the launcher was
    first missing although its controller believes that it exists; None while that is not so. `request` is a person's.
    `queue` says, as a sentence, why a queue holds the job back; it is empty while none does.
    `ended_at` is when `result` became known: see `with_end`. `hub` is None for a job that no hub has made.
    """

    launcher: str
    instance: str
    registered_at: Instant
    revision: int = 0
    hosts: frozenset[Host] = frozenset()
    run: int = 0
    running: bool = False
    exit_code: int | None = None
    launcher_lost_since: Instant | None = None
    restarts: int = 0
    applied: int = 0
    ending: bool = False
    result: Result | None = None
    acknowledgement: Acknowledgement | None = None
    request: UserRequest | None = None
    queue: str = ""
    ended_at: Instant | None = None
    hub: HubMarks | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """A decided STOP, which is never taken back. `everyone`: it goes to all processes, not only to rank 0."""

    run: int
    generation: int
    since: Instant
    everyone: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """A request to a job's controller for more workers, or the pause after a failed one.

    `workers` is the requested size of the run, 0 during a pause. `number` identifies the attempt. `until` is the end of
    the attempt or of the pause. `failed` counts consecutive failures.
    """

    workers: int
    number: int
    until: Instant
    failed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRequest:
    """The last decided CHECKPOINT, for the processes of `run`: they save and continue."""

    run: int
    generation: int
    since: Instant


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The decision of control about a job; `generation` grows with every change.

    `hosts` are the job's to use. `exclusions` are those of them that will be reclaimed, excluded since generation
    `excluded_at`. Each `…_since` and `…_until` is None while it does not apply. `agreement` is the last agreement on a
    step that was not given up, `epochs` the last epoch in use. `round` is the last one of a job that torchrun runs.
    `run_since` is when the last run was started, and once it runs, when it began to; None is unknown. `short_runs`
    counts consecutive runs that were lost soon after that. `held_up` and `request` say what `reason` is about: a node
    that will be reclaimed could take the job's pods, or a person has asked for this. `resumes_from` is the step of the
    checkpoint from which a waiting job's next run starts; None is unknown. Since `given_up_since`, a suspended job
    waits for its hub to move it to another cluster, and is not resumed in this one.
    """

    generation: int
    phase: Phase
    reason: str
    run: int = 0
    hosts: frozenset[Host] = frozenset()
    exclusions: frozenset[Host] = frozenset()
    excluded_at: int = 0
    window_until: Instant | None = None
    below_min_since: Instant | None = None
    waiting_since: Instant | None = None
    capacity_since: Instant | None = None
    resume_until: Instant | None = None
    failed_resumes: int = 0
    not_before: Instant | None = None
    stop: Stop | None = None
    growth: Growth | None = None
    checkpoint: CheckpointRequest | None = None
    agreement: Agreement | None = None
    epochs: int = 0
    round: Round | None = None
    run_since: Instant | None = None
    short_runs: int = 0
    held_up: bool = False
    request: UserRequest | None = None
    resumes_from: int | None = None
    given_up_since: Instant | None = None

    @property
    def agreed_stop(self) -> Agreement | None:
        """The committed agreement of the present stop; None if rank 0 stops alone."""
        agreement, stop = self.agreement, self.stop
        if agreement is None or stop is None or not agreement.committed or agreement.purpose is not Purpose.STOP:
            return None
        return agreement if agreement.run == stop.run else None

    @property
    def probing(self) -> bool:
        """Whether the job is resuming although no free capacity is known. Such a job still counts as waiting."""
        return self.phase is Phase.RESUMING and self.waiting_since is not None

    @property
    def growing(self) -> Growth | None:
        """The present request for more workers, if there is one."""
        return self.growth if self.growth is not None and self.growth.workers else None


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisedJob:
    """One job. `id` tells it from an earlier one of the same name.

    `ingest` writes `spec` and `observed`, and the first `decision` together with the job; `control` writes the others.
    """

    name: JobName
    uid: str
    spec: Spec
    observed: Observed
    decision: Decision

    @property
    def id(self) -> JobId:
        """The identity of this registration of the job: the key of everything about it that is not stored."""
        return JobId(self.name, self.uid, self.observed.registered_at)

    @property
    def over(self) -> bool:
        """Whether the job has ended for good."""
        return self.observed.result is not None

    @property
    def held_back(self) -> bool:
        """Whether somebody has asked to suspend or end the job, so that it must not start or grow."""
        return self.observed.ending or self.observed.request is not None

    @property
    def workers(self) -> frozenset[Host]:
        """The hosts of the present run without exclusions; none if no run is running."""
        if self.over or not self.observed.running:
            return frozenset()
        return (self.decision.hosts & self.observed.hosts) - self.decision.exclusions

    @property
    def own_hosts(self) -> frozenset[Host]:
        """The hosts whose notices concern the job: its granted hosts, its controller's hosts, and its launcher's."""
        hosts = self.decision.hosts
        if self.spec.can(Capability.MAKES_HOSTS):
            hosts |= self.observed.hosts
        return hosts if self.spec.launcher_host is None else hosts | {self.spec.launcher_host}


def with_end(job: SupervisedJob, now: Instant) -> SupervisedJob:
    """The job with the instant of its end: `now` if it has just ended, or if an earlier version stored no instant."""
    if job.over is (job.observed.ended_at is not None):
        return job
    return replace(job, observed=replace(job.observed, ended_at=now if job.over else None))


def ended_before(job: SupervisedJob, instant: Instant) -> bool:
    """Whether the job ended before that instant; False if its end is unknown."""
    ended_at = job.observed.ended_at
    return job.over and ended_at is not None and ended_at < instant
