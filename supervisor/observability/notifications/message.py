"""Composes messages from the occurrences of a moment: one for each job, and a summary of the rest. Pure."""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from urllib.parse import quote

from supervisor.domain.ids import JobName

MAX_JOBS = 10
"""Messages about one job each; further jobs of the same moment are in the summary."""

MAX_EVENTS = 20


class NotificationKind(StrEnum):
    """The subjects of notifications. A target chooses among them."""

    SHRUNK = "shrunk"
    SUSPENDED = "suspended"
    RESUMED = "resumed"
    TIMED_OUT = "timed-out"
    FINISHED = "finished"
    LATE_STOP = "late-stop"
    UNCOVERED = "uncovered-workers"
    NOTICE = "reclaim-notice"


class NotificationSeverity(StrEnum):
    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"


SUMMARY, TEST = "summary", "test"
"""Kinds of messages that are about more than one job, or about nothing."""

SEVERITIES = {
    NotificationKind.SHRUNK: NotificationSeverity.WARNING,
    NotificationKind.SUSPENDED: NotificationSeverity.WARNING,
    NotificationKind.RESUMED: NotificationSeverity.INFO,
    NotificationKind.TIMED_OUT: NotificationSeverity.CRITICAL,
    NotificationKind.FINISHED: NotificationSeverity.INFO,
    NotificationKind.LATE_STOP: NotificationSeverity.CRITICAL,
    NotificationKind.UNCOVERED: NotificationSeverity.CRITICAL,
    NotificationKind.NOTICE: NotificationSeverity.INFO,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Occurrence:
    """Something that happened. `at` is Unix seconds, `job` is None for a notice, and `hosts` are the hosts concerned.

    `id` is the same whichever leader reports it, so that receivers can recognize a repetition.
    """

    id: str
    kind: NotificationKind
    text: str
    at: float
    namespace: str
    job: JobName | None = None
    hosts: tuple[str, ...] = ()
    drill: bool = False

    @property
    def severity(self) -> NotificationSeverity:
        """The urgency; a drill is not urgent."""
        return NotificationSeverity.INFO if self.drill else SEVERITIES[self.kind]


@dataclass(frozen=True, slots=True, kw_only=True)
class NotificationMessage:
    """A message about `count` occurrences, of which `events` are the latest.

    `kind` is that of the most important one, or `summary` or `test`. `link` and `command` show more about the job; they
    are empty if there is no such job or no page.
    """

    id: str
    kind: str
    severity: NotificationSeverity
    title: str
    cluster: str
    namespace: str
    job: str
    drill: bool
    at: float
    count: int
    events: tuple[Occurrence, ...]
    link: str = ""
    command: str = ""


def identifier(*parts: object) -> str:
    """Returns a short id that depends only on these parts."""
    return sha256("/".join(str(part) for part in parts).encode()).hexdigest()[:16]


_URGENCY = (NotificationSeverity.INFO, NotificationSeverity.WARNING, NotificationSeverity.CRITICAL)

_TITLES = {
    NotificationKind.SHRUNK: "continues with fewer hosts",
    NotificationKind.SUSPENDED: "is suspended",
    NotificationKind.RESUMED: "runs again",
    NotificationKind.TIMED_OUT: "timed out",
    NotificationKind.FINISHED: "has ended",
    NotificationKind.LATE_STOP: "was not saved",
    NotificationKind.UNCOVERED: "has workers that a reclaim would not reach",
}


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of messages: the name of the cluster, and the URL of the status page; empty if unknown."""

    cluster: str = ""
    page_url: str = ""


@dataclass(frozen=True, slots=True)
class Choice:
    """The selection of a target. Without namespaces it selects all namespaces, and notices about nodes."""

    kinds: Collection[NotificationKind]
    namespaces: Collection[str] = ()


def messages(occurrences: Sequence[Occurrence], choice: Choice, origin: Origin) -> Iterator[NotificationMessage]:
    """The messages for one target, the most urgent first."""
    wanted = [
        each
        for each in occurrences
        if each.kind in choice.kinds and (not choice.namespaces or each.namespace in choice.namespaces)
    ]
    by_job: dict[JobName, list[Occurrence]] = {}
    for each in wanted:
        if each.job is not None:
            by_job.setdefault(each.job, []).append(each)
    jobs = sorted(by_job.values(), key=lambda group: -max(_URGENCY.index(each.severity) for each in group))
    yield from (_of_job(group, origin) for group in jobs[:MAX_JOBS])
    notices = [each for each in wanted if each.job is None]
    further = jobs[MAX_JOBS:]
    if notices or further:
        yield _summary(notices, further, origin)


def sample(origin: Origin) -> NotificationMessage:
    """A message about a made-up job, to try templates with."""
    made_up = Occurrence(
        id=TEST,
        kind=NotificationKind.SUSPENDED,
        text="An example.",
        at=0.0,
        namespace="team",
        job=JobName("team/job"),
        hosts=("a",),
    )
    return _of_job([made_up], origin)


def trial(origin: Origin, at: float) -> NotificationMessage:
    """Makes the message that shows that a target can be reached."""
    return NotificationMessage(
        id=identifier(TEST, at),
        kind=TEST,
        severity=NotificationSeverity.INFO,
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


def _of_job(group: Sequence[Occurrence], origin: Origin) -> NotificationMessage:
    head, drill = _headline(group), all(each.drill for each in group)
    name = head.job or ""
    return NotificationMessage(
        id=_joint_id(group),
        kind=head.kind,
        severity=head.severity,
        title=f"{'Drill: ' if drill else ''}{_prefix(origin)}Job {name} {_TITLES[head.kind]}",
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


def _headline(group: Sequence[Occurrence]) -> Occurrence:
    """Returns the latest occurrence, unless an earlier one is critical."""
    critical = [each for each in group if each.severity is NotificationSeverity.CRITICAL]
    return (critical or group)[-1]


def _summary(
    notices: Sequence[Occurrence], jobs: Sequence[Sequence[Occurrence]], origin: Origin
) -> NotificationMessage:
    headlines = [_headline(group) for group in jobs]
    events = [*headlines, *notices]
    parts = []
    if notices:
        parts.append(f"{len(notices)} reclaim {'notice' if len(notices) == 1 else 'notices'}")
    if jobs:
        counts = Counter(each.kind for each in headlines)
        parts.append(f"{len(jobs)} more jobs ({', '.join(f'{count} {kind}' for kind, count in counts.items())})")
    drill = all(each.drill for each in events)
    return NotificationMessage(
        id=_joint_id(events),
        kind=SUMMARY if jobs else NotificationKind.NOTICE,
        severity=max((each.severity for each in events), key=_URGENCY.index),
        title=f"{'Drill: ' if drill else ''}{_prefix(origin)}{' and '.join(parts)}",
        cluster=origin.cluster,
        namespace="",
        job="",
        drill=drill,
        at=max(each.at for each in events),
        count=len(events),
        events=tuple(events[:MAX_EVENTS]),
        link=origin.page_url,
    )


def _joint_id(occurrences: Sequence[Occurrence]) -> str:
    """The id of a message about these."""
    return occurrences[0].id if len(occurrences) == 1 else identifier(*(each.id for each in occurrences))


def _prefix(origin: Origin) -> str:
    return f"[{origin.cluster}] " if origin.cluster else ""
