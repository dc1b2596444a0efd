"""One job in sentences: where it stands and why, what will be gone, what comes next, and whether it is covered."""

from collections.abc import Iterator, Sequence

from supervisor.cli.status import Acknowledgement, Host, Job, Notice, Status
from supervisor.cli.text import duration, listed

_MAX_NAMES = 5
_WAITS = ("Waiting", "Suspended")


def explain(job: Job, status: Status) -> list[str]:
    """Lines for people; those that belong to the one before are indented."""
    return [
        *_standing(job),
        *_usable(job, status),
        *_noticed(job, status),
        *_ahead(job),
        *_covered(job),
        *_unseen(job, status),
    ]


def _standing(job: Job) -> Iterator[str]:
    since = "" if job.since_seconds is None else f" for {duration(job.since_seconds)}"
    yield f"{job.job} is {job.phase}{since}."
    # What a suspended job waits for is said below: this is why it was stopped.
    yield f"  {'Last decision' if job.phase == 'Suspended' else 'Why'}: {job.reason}"
    if job.over:
        return
    asked = f"between {job.min_workers} and {job.max_workers}"
    if job.running:
        left_out = f", {_names(job.exclusions)} left out" if job.exclusions else ""
        yield f"  Run {job.run} is running on {_count(len(job.workers), 'host')}{left_out}; it asks for {asked}."
    else:
        yield f"  No run is running; it asks for {asked} hosts."
    if job.acknowledgement is not None:
        yield f"  {_answered(job.acknowledgement)}"


def _answered(answer: Acknowledgement) -> str:
    did = "saved a checkpoint" if answer.kind == "saved" else "left"
    step = "" if answer.step is None else f" at step {answer.step}"
    ago = "" if answer.age_seconds is None else f", {duration(answer.age_seconds)} ago"
    return f"When it was last told to stop, rank 0 of run {answer.run} {did}{step}{ago}."


def _usable(job: Job, status: Status) -> Iterator[str]:
    """Which of the listed hosts a job that waits could start on, and what the others lack."""
    hosts = status.hosts_of(job)
    if job.phase not in _WAITS or not hosts or any(host.agent is None for host in hosts):
        return
    silent = [host.host for host in hosts if not host.agent]
    noticed = [host.host for host in hosts if host.agent and host.notice is not None]
    usable = len(hosts) - len(silent) - len(noticed)
    yield f"  {usable} of its {_count(len(hosts), 'host')} {'is' if usable == 1 else 'are'} connected without a notice."
    if noticed:
        yield f"  With a notice: {_names(noticed)}."
    if silent:
        yield f"  No agent is connected: {_names(silent)}."


def _noticed(job: Job, status: Status) -> Iterator[str]:
    known = status.by_id
    found = [(host, known.get(host.notice)) for host in status.hosts_of(job) if host.notice is not None]
    if not found:
        yield "None of its hosts has a notice."
        return
    yield f"{_count(len(found), 'of its hosts', 'of its hosts')} will be gone:"
    for host, notice in found:
        yield f"  {_going(host, notice)}"


def _going(host: Host, notice: Notice | None) -> str:
    where = "" if host.node in (None, host.host) else f" on {host.node}"
    if notice is not None and not notice.active:
        return f"{host.host}{where} is {notice.state}, as {notice.source} said."
    left = "at a time that nobody names" if host.seconds_left is None else f"in {duration(host.seconds_left)}"
    who = "somebody" if notice is None else notice.source
    drill = " (a drill: the machine stays)" if notice is not None and notice.drill else ""
    return f"{host.host}{where} {left}, says {who}{drill}."


def _ahead(job: Job) -> Iterator[str]:
    if not job.prospects:
        nothing = "It is over." if job.over else "It goes on."
        yield f"Next: {nothing}"
        return
    yield "Next:"
    for prospect in job.prospects:
        if prospect.seconds is None:
            yield f"  {prospect.what[:1].upper()}{prospect.what[1:]}."
        else:
            yield f"  In {duration(prospect.seconds)}: {prospect.what}."


def _covered(job: Job) -> Iterator[str]:
    """Whether a reclaim would be heard of, and whether whoever has to act would hear it."""
    workers = [host for host in job.host_states if host.worker]
    if (
        job.phase in _WAITS
        or job.over
        or not workers
        or any(host.agent is None or host.stream is None for host in workers)
    ):
        return
    silent = [host.host for host in workers if not host.agent]
    deaf = [host.host for host in workers if not host.stream]
    if not silent and not deaf:
        yield f"Covered: {_count(len(workers), 'worker')}, each with a live agent and a process that hears directives."
        return
    yield "Not covered:"
    if silent:
        yield f"  No agent of {_names(silent)} is connected: a reclaim there would come without a notice."
    if deaf:
        yield f"  No process on {_names(deaf)} has a stream: it would not hear that it has to stop or leave."


def _unseen(job: Job, status: Status) -> Sequence[str]:
    return [] if job.over else [f"Not seen: {each}" for each in status.unseen]


def _names(names: Sequence[str]) -> str:
    if len(names) > _MAX_NAMES:
        return f"{', '.join(names[:_MAX_NAMES])} and {len(names) - _MAX_NAMES} more"
    return listed(names)


def _count(number: int, one: str, many: str | None = None) -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"
