"""Writes the sentences that explain decisions to people, in the status, Events, logs and orders alike.

A sentence that one rule alone uses stands in that rule. No sentence contains a number that changes with time alone, so
that a decision changes only when something happens.
"""

from collections.abc import Collection, Mapping

from supervisor.decide.grant import least_workers, takes_any_size
from supervisor.domain.ids import Host
from supervisor.domain.job import (
    AcknowledgementKind,
    OnLoss,
    Phase,
    RequestKind,
    Spec,
    SupervisedJob,
    UserRequest,
)
from supervisor.domain.notice import OPERATOR, SIMULATED, ReclaimNotice

DRILL = "Drill: "
HELD_UP = "Waiting: the job's pods could be scheduled on a node that will be reclaimed."
"""Contains no names: 200 nodes that are reclaimed one by one would cause 200 decisions for each waiting job."""

NO_ROOM = "Waiting for nodes with room for the job's pods."
FREED = "The suspension was lifted; waiting for capacity."

_RECLAIMED = "will be reclaimed, "
_MAX_NAMES = 5

STARTING = "Starting run "
"""The beginning of the reason of a first run that was ordered."""


def is_drill(reason: str) -> bool:
    """Whether a reason says that a drill is the only cause."""
    return reason.startswith(DRILL)


def is_reclaim(reason: str) -> bool:
    """Whether a reason says that hosts will be reclaimed. A person's own words may say so, too."""
    return _RECLAIMED in reason and not is_drill(reason)


def following(cause: str, reason: str) -> str:
    """The reason of a decision that follows only from an earlier one. It keeps the mark of that decision's drill."""
    return f"{DRILL}{reason}" if is_drill(cause) and not is_drill(reason) else reason


def waiting(spec: Spec) -> str:
    least, most = least_workers(spec, to_start=True), spec.requested_workers
    return f"Waiting for {count(most) if least == most else f'{least} to {most} hosts'} without a notice."


def gang_sentence(spec: Spec) -> str:
    """Says which gang has set the smallest size of the job; empty if none has."""
    gang = spec.gang
    if gang is None or gang.workers < spec.min_workers:
        return ""
    needs = "all of its" if gang.workers >= spec.requested_workers else "at least"
    return f"{gang.source} demands {gang.pods:,} pods at a time, so the job needs {needs} {count(gang.workers)}."


def running(run: int, workers: int) -> str:
    return f"Run {run} is running on {count(workers)}."


def at_present(job: SupervisedJob) -> str:
    """The reason in its present wording, because the first run of a job may have started since it was ordered.

    A decision that says so would be another order to the launcher, and another line to each process.
    """
    decision, observed = job.decision, job.observed
    has_started = decision.phase is Phase.RUNNING and observed.running and observed.run == decision.run
    if has_started and decision.reason.startswith(STARTING):
        return running(decision.run, len(decision.hosts - decision.exclusions))
    return decision.reason


def requested(request: UserRequest) -> str:
    """The reason of a job with a request, while its run stops and as long as the job is suspended or ended for it."""
    did = "suspended" if request.kind is RequestKind.SUSPEND else "stopped"
    return f"{request.by} has {did} the job{f': {request.reason}' if request.reason else ''}."


def announced(hosts: Collection[Host], notices: Mapping[Host, ReclaimNotice]) -> str:
    """Returns which sources announce that hosts will go, without a full stop.

    The sentence begins with `Drill` if drills are the only cause, so that nobody takes it for a reclaim.
    """
    found = [notices[host] for host in hosts if host in notices]
    sources = sorted({notice.source for notice in found})
    if sources == [OPERATOR]:
        people = " and ".join(sorted({notice.drained_by for notice in found}))
        return f"{named(hosts)} {be(hosts)} drained by {people}"
    drill, verb = DRILL if sources == [SIMULATED] else "", "say" if len(sources) > 1 else "says"
    return f"{drill}{named(hosts)} {_RECLAIMED}{verb} {' and '.join(sources)}"


def unused(hosts: Collection[Host], spec: Spec) -> str:
    """Returns why hosts without a notice are excluded: the size of the run."""
    return f"{named(hosts)} {be(hosts)} left out, as {_sizes(spec)}."


def left_out(hosts: Collection[Host], spec: Spec) -> str:
    """The reason in the steady state after hosts were excluded."""
    or_size = "" if takes_any_size(spec) else f", or as {_sizes(spec)}"
    return f"{named(hosts)} {be(hosts)} excluded because of a notice{or_size}."


def minimum(spec: Spec) -> str:
    """Returns the minimum number of hosts in words, and why if the job does not accept every size above it."""
    least = f"minimum {least_workers(spec)}"
    return least if takes_any_size(spec) else f"{least}, as {_sizes(spec)}"


def _sizes(spec: Spec) -> str:
    if spec.on_loss is OnLoss.HOLD:
        return f"the job holds its size of {spec.requested_workers}"
    return f"the number of workers must be a multiple of {spec.worker_multiple}"


def outcome(kind: str, step: int | None, error: str) -> str:
    """A rank's answer to a STOP, as the end of a sentence."""
    at = "" if step is None else f" at step {step}"
    match kind:
        case AcknowledgementKind.SAVED:
            return f"saved a checkpoint{at}"
        case AcknowledgementKind.KEPT:
            return f"left the state{at} in the memory of hosts that stay, and saved no checkpoint"
        case AcknowledgementKind.FAILED:
            return f"could not save{at}: {error}"
    return "left, without saying that it saved"


def remains(step: int | None) -> str:
    """The checkpoint that a stop without a new one leaves, as a sentence."""
    text = resumes_from(step, ends=False)
    return f"{text[:1].upper()}{text[1:]}."


def resumes_from(step: int | None, *, ends: bool) -> str:
    """Names the last checkpoint of a run that has saved nothing. A `step` of None is unknown.

    `ends`: no run follows.
    """
    if ends:
        return "its last checkpoint is unknown" if step is None else f"its last checkpoint is that of step {step}"
    if step is None:
        return "it is not known from which checkpoint the job will resume"
    return f"the job will resume from the checkpoint of step {step}" if step else "the job will start from step 0"


def named(hosts: Collection[Host]) -> str:
    """The names of hosts, but only the first ones of many."""
    names = sorted(hosts)
    if len(names) > _MAX_NAMES:
        return f"{len(names)} hosts ({', '.join(names[:_MAX_NAMES])}, …)"
    return ", ".join(names)


def be(hosts: Collection[Host]) -> str:
    return "is" if len(hosts) == 1 else "are"


def count(hosts: int) -> str:
    return "1 host" if hosts == 1 else f"{hosts} hosts"
