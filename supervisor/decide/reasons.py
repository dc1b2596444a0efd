"""The sentences that explain decisions to people, in the status, Events, logs and orders alike.

No sentence contains a number that changes with time alone, so that a decision changes only when something happens.
"""

from collections.abc import Collection, Mapping

from supervisor.decide.grant import least_to_start, least_workers, takes_any_size
from supervisor.domain.ids import Host
from supervisor.domain.job import (
    Acknowledgement,
    AcknowledgementKind,
    Observed,
    OnLoss,
    Phase,
    RequestKind,
    Result,
    Spec,
    SupervisedJob,
    UserRequest,
)
from supervisor.domain.notice import OPERATOR, SIMULATED, NoticeClass, ReclaimNotice

_MAX_NAMES = 5
_DRILL = "Drill: "
_ALL_SAVE = " All ranks save after step "


def is_drill(reason: str) -> bool:
    """Whether a reason says that a drill is the only cause."""
    return reason.startswith(_DRILL)


def following(cause: str, reason: str) -> str:
    """The reason of a decision that follows from an earlier one alone, and so has the mark of its drill as well."""
    return f"{_DRILL}{reason}" if is_drill(cause) and not is_drill(reason) else reason


def waiting(spec: Spec) -> str:
    least, most = least_to_start(spec), spec.requested_workers
    return f"Waiting for {_count(most) if least == most else f'{least} to {most} hosts'} without a notice."


def started(run: int, workers: int, spec: Spec, *, first: bool) -> str:
    start = "Starting" if first else "Resuming from the checkpoint as"
    return f"{start} run {run} on {workers} of {spec.requested_workers} requested hosts."


def at_present(job: SupervisedJob) -> str:
    """The reason as it reads now: the first run of a job may have started since it was ordered.

    A decision that says so would be another order to the launcher, and another line to each process.
    """
    decision, observed = job.decision, job.observed
    has_started = decision.phase is Phase.RUNNING and observed.running and observed.run == decision.run
    if has_started and decision.reason.startswith("Starting run "):
        return running(decision.run, len(decision.hosts - decision.exclusions))
    return decision.reason


def probing(run: int, workers: int) -> str:
    """A run is ordered to see whether capacity appears for it."""
    return f"Trying run {run} on {_count(workers)} without known room: some capacity only appears for pending pods."


def probe_failed(run: int) -> str:
    return f"No capacity appeared for run {run}; waiting before the next attempt."


def held_up() -> str:
    """Contains no names: 200 nodes that are reclaimed one by one would cause 200 decisions for each waiting job."""
    return "Waiting: the job's pods could be scheduled on a node that will be reclaimed."


def no_room() -> str:
    return "Waiting for nodes with room for the job's pods."


def running(run: int, workers: int) -> str:
    return f"Run {run} is running on {_count(workers)}."


def joined(hosts: Collection[Host], workers: int) -> str:
    return f"{_names(hosts)} joined; now {_count(workers)}."


def gone(hosts: Collection[Host], workers: int) -> str:
    """Hosts that were in use have left the host list."""
    verb = "is" if len(hosts) == 1 else "are"
    return f"{_names(hosts)} {verb} gone; now {_count(workers)}."


def growing(workers: int, spec: Spec) -> str:
    return f"There is room again: asking for {workers} of {spec.requested_workers} requested hosts."


def grown(workers: int, spec: Spec) -> str:
    return f"Continuing with {workers} of {spec.requested_workers} requested hosts."


def growth_failed(workers: int, left: int) -> str:
    return f"The job did not grow to {_count(workers)} in time; continuing with {left}, and trying again later."


def withdrawn(hosts: Collection[Host], workers: int) -> str:
    """Their notices have ended: withdrawn by the cloud, or a drain or drill that is over."""
    verb = "has" if len(hosts) == 1 else "have"
    return f"{_names(hosts)} {verb} no notice any more; now {_count(workers)}."


def returned(hosts: Collection[Host], workers: int) -> str:
    """Hosts that were excluded, for a notice or for the size of the run, are used again."""
    verb = "is" if len(hosts) == 1 else "are"
    return f"{_names(hosts)} {verb} used again; now {_count(workers)}."


def unused(hosts: Collection[Host], spec: Spec) -> str:
    """Hosts without a notice are excluded for the size of the run."""
    verb = "is" if len(hosts) == 1 else "are"
    return f"{_names(hosts)} {verb} left out, as {_sizes(spec)}."


def left_unused(hosts: Collection[Host], workers: int, spec: Spec) -> str:
    return f"{unused(hosts, spec)} Continuing with {_count(workers)}."


def collecting(hosts: Collection[Host], notices: Mapping[Host, ReclaimNotice]) -> str:
    return f"{_noticed(hosts, notices)}; waiting a moment for further notices of the same group."


def using(hosts: Collection[Host], notices: Mapping[Host, ReclaimNotice]) -> str:
    """There is time until then, and the run can go on without them."""
    return f"{_noticed(hosts, notices)}; training on all hosts until shortly before."


def shrinking(
    hosts: Collection[Host],
    notices: Mapping[Host, ReclaimNotice],
    left: int,
    spec: Spec,
    surplus: Collection[Host] = (),
) -> str:
    """`surplus` are hosts without a notice that are excluded with the others."""
    says = f"{_noticed(hosts, notices)}; continuing with {_count(left)} ({_minimum(spec)})."
    return f"{says} {unused(surplus, spec)}" if surplus else says


def saving(notices: Mapping[Host, ReclaimNotice]) -> str:
    """The run continues; its hosts are not gone yet, and perhaps never will be."""
    sources = " and ".join(sorted({notice.source for notice in notices.values()}))
    may = "may" if any(notice.notice_class is NoticeClass.HINT for notice in notices.values()) else "is to"
    return f"{_names(notices)} {may} be reclaimed later, according to {sources}: saving a checkpoint and continuing."


def below_minimum(hosts: Collection[Host], notices: Mapping[Host, ReclaimNotice], left: int, spec: Spec) -> str:
    return f"{_noticed(hosts, notices)}; {_count(left)} would remain ({_minimum(spec)}): stopping."


def fixed_hosts(hosts: Collection[Host], notices: Mapping[Host, ReclaimNotice]) -> str:
    return f"{_noticed(hosts, notices)}; the run cannot go on without a host: stopping."


def launcher_noticed(host: Host, notice: ReclaimNotice) -> str:
    if notice.drains:
        return f"The launcher's host {host} is drained by {notice.drained_by}: stopping."
    drill = _DRILL if notice.simulated else ""
    return f"{drill}The launcher's host {host} will be reclaimed, says {notice.source}: stopping."


def ending() -> str:
    return "The launcher was asked to end the job: stopping."


def requested(request: UserRequest) -> str:
    """Holds while the run is stopped, and as long as the job is suspended or ended for it."""
    did = "suspended" if request.kind is RequestKind.SUSPEND else "stopped"
    return f"{request.by} has {did} the job{f': {request.reason}' if request.reason else ''}."


def freed() -> str:
    return "The suspension was lifted; waiting for capacity."


def lost_hosts(live: int, spec: Spec) -> str:
    verb = "remains" if live == 1 else "remain"
    return f"Hosts were lost without a notice; {_count(live)} {verb} ({_minimum(spec)})."


def agreeing(why: str) -> str:
    """The ranks are asked for a step."""
    return f"{why} All ranks are to stop at one step."


def training_on(why: str) -> str:
    """The ranks can agree, and there is time."""
    return f"{why} All ranks stop at one step shortly before; until then they train on."


def all_stop_at(why: str, step: int) -> str:
    """Replaces the step of an earlier agreement, which ranks have passed."""
    return f"{why.partition(_ALL_SAVE)[0]}{_ALL_SAVE}{step}."


def alone(why: str, who: str) -> str:
    """The ranks have not agreed; `who` says why not."""
    return f"{why} There is no agreed step, as {who}: rank 0 saves alone."


def insisting(why: str, who: str) -> str:
    """The ranks have not agreed, and none of them can save alone."""
    return f"{why} There is no agreed step yet, as {who}: asking again, as all ranks save together."


def unsaved(reason: str) -> str:
    """The last moment of ranks that save together and have not agreed."""
    return f"{reason} Time is up: all ranks exit, and none can save."


def acknowledged(reason: str, acknowledgement: Acknowledgement | None, *, together: bool = False) -> str:
    who, verb = ("All ranks", "have") if together else ("Rank 0", "has")
    if acknowledgement is None or acknowledgement.kind is AcknowledgementKind.LEFT:
        return f"{reason} {who} {verb} left, without saying that {'they' if together else 'it'} saved."
    step = "" if acknowledgement.step is None else f" of step {acknowledgement.step}"
    return f"{reason} {who} {verb} saved a checkpoint{step}."


def outcome(kind: str, step: int | None, error: str) -> str:
    """What a rank has answered to a STOP, as the end of a sentence."""
    at = "" if step is None else f" at step {step}"
    match kind:
        case AcknowledgementKind.SAVED:
            return f"saved a checkpoint{at}"
        case AcknowledgementKind.FAILED:
            return f"could not save{at}: {error}"
    return "left, without saying that it saved"


def could_not_save(reason: str, failed: Acknowledgement, *, ends: bool) -> str:
    """`ends`: the job is not resumed."""
    return f"{reason} Rank {failed.rank} could not save: {failed.error}; {_resumes(failed.resumes_from, ends=ends)}."


def remains(step: int | None) -> str:
    """What a stop without a checkpoint leaves, as a sentence."""
    said = _resumes(step, ends=False)
    return f"{said[:1].upper()}{said[1:]}."


def _resumes(step: int | None, *, ends: bool) -> str:
    """What is left of a run that has saved nothing: its last checkpoint, of `step`; None is unknown."""
    if ends:
        return "its last checkpoint is unknown" if step is None else f"its last checkpoint is that of step {step}"
    if step is None:
        return "it is not known from which checkpoint the job will resume"
    return f"the job will resume from the checkpoint of step {step}" if step else "the job will start from step 0"


def run_ended(reason: str, observed: Observed) -> str:
    """The command ended during a STOP, or had not started."""
    if observed.exit_code is None:
        return f"{reason} The run had not started."
    return f"{reason} The run ended with code {observed.exit_code}."


def stop_unanswered(reason: str, said: str, saved_step: int | None, *, ends: bool) -> str:
    """`said` names who has not answered."""
    return f"{reason} {said} in time; {_resumes(saved_step, ends=ends)}."


def unranked(why: str) -> str:
    """A STOP goes to all processes, as none of them can answer for the job."""
    return f"{why} No process is rank 0, as none knows its rank: all are told to save."


def resume_failed(run: int) -> str:
    return f"Run {run} did not start in time; waiting before the next attempt."


def retrying(observed: Observed) -> str:
    """A run failed by itself, without a STOP."""
    failed = "is not running" if observed.exit_code is None else f"failed with code {observed.exit_code}"
    return f"Run {observed.run} {failed}; its launcher starts it again or gives up."


def launcher_missing(run: int) -> str:
    return f"The launcher of run {run} is gone; its operator may start another."


def launcher_lost(run: int) -> str:
    return f"The launcher of run {run} is gone and its operator started no other: suspending and resuming the job."


def short_run(run: int, pause: float) -> str:
    return f"Run {run} was lost soon after it began: pausing {pause:g} s before the next one."


def timed_out(spec: Spec) -> str:
    least, wait = least_to_start(spec), spec.max_wait_seconds
    return f"No capacity for {_count(least)} within the maximum waiting time of {wait:g} s."


def left_out(hosts: Collection[Host], spec: Spec) -> str:
    """The steady state after hosts were excluded."""
    verb = "is" if len(hosts) == 1 else "are"
    or_size = "" if takes_any_size(spec) else f", or as {_sizes(spec)}"
    return f"{_names(hosts)} {verb} excluded because of a notice{or_size}."


def finished(result: Result) -> str:
    return f"The job has ended: {result.value.replace('_', ' ')}."


def _minimum(spec: Spec) -> str:
    """The fewest hosts; where the job does not take every size above that, also why."""
    least = f"minimum {least_workers(spec)}"
    return least if takes_any_size(spec) else f"{least}, as {_sizes(spec)}"


def _sizes(spec: Spec) -> str:
    if spec.on_loss is OnLoss.HOLD:
        return f"the job holds its size of {spec.requested_workers}"
    return f"the number of workers must be a multiple of {spec.worker_multiple}"


def _noticed(hosts: Collection[Host], notices: Mapping[Host, ReclaimNotice]) -> str:
    """The sentence begins with `Drill` if drills are the only cause, so that nobody takes it for a reclaim."""
    sources = sorted({notices[host].source for host in hosts if host in notices})
    if sources == [OPERATOR]:
        people = sorted({notices[host].drained_by for host in hosts if host in notices})
        return f"{_names(hosts)} {'is' if len(hosts) == 1 else 'are'} drained by {' and '.join(people)}"
    drill = _DRILL if sources == [SIMULATED] else ""
    verb = "say" if len(sources) > 1 else "says"
    return f"{drill}{_names(hosts)} will be reclaimed, {verb} {' and '.join(sources)}"


def _names(hosts: Collection[Host]) -> str:
    names = sorted(hosts)
    if len(names) > _MAX_NAMES:
        return f"{len(names)} hosts ({', '.join(names[:_MAX_NAMES])}, …)"
    return ", ".join(names)


def _count(hosts: int) -> str:
    return "1 host" if hosts == 1 else f"{hosts} hosts"
