"""The sentences that explain decisions to people; the same words in status, logs and orders.

No sentence holds a number that changes with the time alone, so that a decision changes only when something happens.
"""

from collections.abc import Collection, Mapping

from supervisor.domain.ids import Host
from supervisor.domain.job import Acknowledgement, AcknowledgementKind, Observed, Result, Spec
from supervisor.domain.notice import SIMULATED, ReclaimNotice

_MAX_NAMES = 5
_DRILL = "Drill: "


def waiting(spec: Spec) -> str:
    """A job that has just been registered."""
    return f"Waiting for {spec.min_workers} to {spec.requested_workers} hosts without a notice."


def started(run: int, workers: int, spec: Spec, *, first: bool) -> str:
    """A run that is ordered."""
    verb = "Starting" if first else "Resuming from the checkpoint"
    return f"{verb} as run {run} on {workers} of {spec.requested_workers} requested hosts."


def probing(run: int, workers: int) -> str:
    """A run that is ordered to see whether capacity appears for it."""
    return f"Trying run {run} on {workers} hosts though no node has room: some capacity only appears for pending pods."


def probe_failed(run: int) -> str:
    """Nothing appeared."""
    return f"No capacity appeared for run {run}, which was a try; waiting before the next one."


def held_up() -> str:
    """No names: 200 nodes that go one by one would be as many decisions for each job that waits."""
    return "A node that will be reclaimed could still take its pods; it resumes when there is none."


def no_room() -> str:
    """Nothing but capacity is missing."""
    return "Waiting for nodes with room for its pods."


def running(run: int, workers: int) -> str:
    """Nothing to do."""
    return f"Run {run} is running on {workers} hosts."


def joined(hosts: Collection[Host], workers: int) -> str:
    """Hosts were added to the list."""
    return f"{_names(hosts)} joined; {workers} hosts."


def gone(hosts: Collection[Host], workers: int) -> str:
    """Hosts that were in use are gone from the list."""
    verb = "is" if len(hosts) == 1 else "are"
    return f"{_names(hosts)} {verb} gone; {workers} hosts."


def growing(workers: int, spec: Spec) -> str:
    """An operator is asked for more."""
    return f"There is room again: asking for {workers} of {spec.requested_workers} requested hosts."


def grown(workers: int, spec: Spec) -> str:
    """They have come."""
    return f"Going on with {workers} of {spec.requested_workers} requested hosts."


def growth_failed(workers: int, left: int) -> str:
    """They have not."""
    return f"There were no {workers} hosts in time; going on with {left}, and asking again later."


def withdrawn(hosts: Collection[Host], workers: int) -> str:
    """Notices were taken back."""
    return f"{_names(hosts)} will not be reclaimed after all; {workers} hosts."


def collecting(hosts: Collection[Host], notices: Mapping[Host, ReclaimNotice]) -> str:
    """A group of notices is still coming in."""
    return f"{_noticed(hosts, notices)}; waiting a moment for others of the same group."


def shrinking(hosts: Collection[Host], notices: Mapping[Host, ReclaimNotice], left: int, spec: Spec) -> str:
    """A group is taken off the list."""
    return f"{_noticed(hosts, notices)}; going on with {left} hosts, at least {spec.min_workers} are needed."


def below_minimum(hosts: Collection[Host], notices: Mapping[Host, ReclaimNotice], left: int, spec: Spec) -> str:
    """Too few would be left."""
    return f"{_noticed(hosts, notices)}; {left} hosts would be left and {spec.min_workers} are needed: stopping."


def launcher_noticed(host: Host, notice: ReclaimNotice) -> str:
    """The launcher's own host goes."""
    drill = _DRILL if notice.simulated else ""
    return f"{drill}The launcher's host {host} will be reclaimed, says {notice.source}: stopping."


def ending() -> str:
    """Somebody ends the job."""
    return "Its launcher was asked to end the job: stopping."


def lost_hosts(live: int, spec: Spec) -> str:
    """Hosts went without a notice."""
    return f"{live} hosts are left without any notice and {spec.min_workers} are needed."


def acknowledged(reason: str, acknowledgement: Acknowledgement | None) -> str:
    """Rank 0 has answered a STOP."""
    if acknowledgement is None or acknowledgement.kind is AcknowledgementKind.LEFT:
        return f"{reason} Rank 0 has left."
    step = "" if acknowledgement.step is None else f" of step {acknowledgement.step}"
    return f"{reason} Rank 0 has saved a checkpoint{step}."


def run_ended(reason: str, observed: Observed) -> str:
    """The command ended while a STOP was under way, or before it was started."""
    if observed.exit_code is None:
        return f"{reason} The run had not started."
    return f"{reason} The run ended with code {observed.exit_code}."


def stop_unanswered(reason: str) -> str:
    """A STOP ran out of time."""
    return f"{reason} Rank 0 did not answer in time."


def resume_failed(run: int) -> str:
    """A resume took too long."""
    return f"Run {run} did not start in time; waiting before the next try."


def retrying(observed: Observed) -> str:
    """A run failed by itself."""
    failed = "is not running" if observed.exit_code is None else f"failed with code {observed.exit_code}"
    return f"Run {observed.run} {failed}; its launcher starts it again or gives up."


def launcher_missing(run: int) -> str:
    """The launcher's pod is gone, and its operator may still act."""
    return f"The launcher of run {run} is gone; its operator may start another."


def launcher_lost(run: int) -> str:
    """Its operator has not acted."""
    return f"The launcher of run {run} is gone and its operator starts no other: suspended, to be resumed."


def timed_out(spec: Spec) -> str:
    """The job waited longer than it may."""
    return f"No capacity for {spec.min_workers} hosts within the maximum waiting time of {spec.max_wait_seconds:g} s."


def left_out(hosts: Collection[Host]) -> str:
    """What stays so after the change that left them out."""
    verb = "is" if len(hosts) == 1 else "are"
    return f"{_names(hosts)} {verb} left out because of a notice."


def finished(result: Result) -> str:
    """The launcher has ended the job."""
    return f"The job has ended: {result.value.replace('_', ' ')}."


def _noticed(hosts: Collection[Host], notices: Mapping[Host, ReclaimNotice]) -> str:
    """Where a drill alone is the cause, the sentence begins with that: nobody must take it for a reclaim."""
    sources = sorted({notices[host].source for host in hosts if host in notices})
    drill = _DRILL if sources == [SIMULATED] else ""
    verb = "say" if len(sources) > 1 else "says"
    return f"{drill}{_names(hosts)} will be reclaimed, {verb} {' and '.join(sources)}"


def _names(hosts: Collection[Host]) -> str:
    names = sorted(hosts)
    if len(names) > _MAX_NAMES:
        return f"{len(names)} hosts ({', '.join(names[:_MAX_NAMES])}, …)"
    return ", ".join(names)
