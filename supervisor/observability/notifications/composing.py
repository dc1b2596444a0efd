"""Makes messages of what happened within a moment: one for each job, and a summary of notices. Pure."""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import quote

from supervisor.domain.ids import JobName
from supervisor.observability.notifications.message import (
    SUMMARY,
    TEST,
    Happening,
    Kind,
    Message,
    Severity,
    identifier,
    joint_id,
)

MAX_JOBS = 10
"""Messages about one job each; further jobs of the same moment are in the summary."""

MAX_EVENTS = 20
_URGENCY = (Severity.INFO, Severity.WARNING, Severity.CRITICAL)

_TITLES = {
    Kind.SHRUNK: "continues with fewer hosts",
    Kind.SUSPENDED: "is suspended",
    Kind.RESUMED: "runs again",
    Kind.TIMED_OUT: "timed out",
    Kind.FINISHED: "has ended",
    Kind.LATE_STOP: "was not saved",
    Kind.UNCOVERED: "has workers that a reclaim would not reach",
}


@dataclass(frozen=True, slots=True)
class Origin:
    """Where messages come from: the name of the cluster, and the URL of the status page; empty if unknown."""

    cluster: str = ""
    page_url: str = ""


@dataclass(frozen=True, slots=True)
class Choice:
    """What a target wants to hear of; no namespaces: all of them, and notices on nodes."""

    kinds: Collection[Kind]
    namespaces: Collection[str] = ()

    def wants(self, happening: Happening) -> bool:
        return happening.kind in self.kinds and (not self.namespaces or happening.namespace in self.namespaces)


def messages(happenings: Sequence[Happening], choice: Choice, origin: Origin) -> Iterator[Message]:
    """The messages for one target, the most urgent first."""
    wanted = [each for each in happenings if choice.wants(each)]
    by_job: dict[JobName, list[Happening]] = {}
    for each in wanted:
        if each.job is not None:
            by_job.setdefault(each.job, []).append(each)
    jobs = sorted(by_job.values(), key=lambda group: -max(_urgency(each) for each in group))
    yield from (_of_job(group, origin) for group in jobs[:MAX_JOBS])
    notices = [each for each in wanted if each.job is None]
    further = jobs[MAX_JOBS:]
    if notices or further:
        yield _summary(notices, further, origin)


def sample(origin: Origin) -> Message:
    """A message about a made-up job, to try templates with."""
    made_up = Happening(
        id=TEST,
        kind=Kind.SUSPENDED,
        text="An example.",
        at=0.0,
        namespace="team",
        job=JobName("team/job"),
        hosts=("a",),
    )
    return _of_job([made_up], origin)


def trial(origin: Origin, at: float) -> Message:
    """The message that shows that a target can be reached."""
    return Message(
        id=identifier(TEST, at),
        kind=TEST,
        severity=Severity.INFO,
        title=f"{_prefix(origin)}A test of the elastic job supervisor's notifications",
        cluster=origin.cluster,
        namespace="",
        job="",
        drill=False,
        at=at,
        count=0,
        events=(),
        link=origin.page_url,
    )


def _of_job(group: Sequence[Happening], origin: Origin) -> Message:
    head = _headline(group)
    drill = all(each.drill for each in group)
    name = head.job or ""
    return Message(
        id=joint_id(group),
        kind=head.kind,
        severity=head.severity,
        title=f"{_drill(drill=drill)}{_prefix(origin)}Job {name} {_TITLES[head.kind]}",
        cluster=origin.cluster,
        namespace=head.namespace,
        job=name,
        drill=drill,
        at=group[-1].at,
        count=len(group),
        events=tuple(group[-MAX_EVENTS:]),
        link=f"{origin.page_url}status/jobs/{quote(name)}" if origin.page_url else "",
        command=f"job-supervisor explain {name}",
    )


def _headline(group: Sequence[Happening]) -> Happening:
    """The latest happening, unless one before it is critical."""
    critical = [each for each in group if each.severity is Severity.CRITICAL]
    return (critical or group)[-1]


def _summary(notices: Sequence[Happening], jobs: Sequence[Sequence[Happening]], origin: Origin) -> Message:
    told = [*(_headline(group) for group in jobs), *notices]
    parts = []
    if notices:
        parts.append(f"{len(notices)} reclaim {'notice' if len(notices) == 1 else 'notices'}")
    if jobs:
        counts = Counter(_headline(group).kind for group in jobs)
        parts.append(f"{len(jobs)} more jobs ({', '.join(f'{count} {kind}' for kind, count in counts.items())})")
    drill = all(each.drill for each in told)
    return Message(
        id=joint_id(told),
        kind=Kind.NOTICE if not jobs else SUMMARY,
        severity=max((each.severity for each in told), key=_URGENCY.index),
        title=f"{_drill(drill=drill)}{_prefix(origin)}{' and '.join(parts)}",
        cluster=origin.cluster,
        namespace="",
        job="",
        drill=drill,
        at=max(each.at for each in told),
        count=len(told),
        events=tuple(told[:MAX_EVENTS]),
        link=origin.page_url,
    )


def _urgency(happening: Happening) -> int:
    return _URGENCY.index(happening.severity)


def _drill(*, drill: bool) -> str:
    return "Drill: " if drill else ""


def _prefix(origin: Origin) -> str:
    return f"[{origin.cluster}] " if origin.cluster else ""
