"""How a report changes what is known, and how time does."""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from supervisor.decide.policy import Policy
from supervisor.domain.ids import Host
from supervisor.domain.notice import (
    API_SOURCES,
    SIMULATED,
    Announcement,
    NoticeState,
    ReclaimNotice,
    Report,
    SubjectKind,
)

_DRIFT_SECONDS = 2.0
"""A deadline that differs by no more is the same: the time that a report travels varies."""


def accept(known: ReclaimNotice | None, report: Report, now: float, policy: Policy) -> ReclaimNotice | None:
    """What is known after `report`: the notice to store, or `known` itself where the report changes nothing.

    Late and reordered reports lose by session and revision. Of a repeated one the time that is left counts.
    """
    if known is not None and (report.session, report.revision) <= (known.session, known.revision):
        return _recounted(known, report, now)
    if report.announcement is Announcement.WITHDRAWN or _is_over(report):
        return _withdrawn(known, report, now)
    return _episode(report, 1, now, policy) if known is None else _announced(known, report, now, policy)


class Presence(StrEnum):
    """What is known of whether the subject of a notice is there.

    THERE: somebody sees it or speaks for it. SILENT: nobody does, which proves nothing before the deadline.
    GONE: whoever would see it says that it is not there.
    """

    THERE = "there"
    SILENT = "silent"
    GONE = "gone"


def settle(notice: ReclaimNotice, seen: Presence, now: float, policy: Policy) -> ReclaimNotice:
    """What time makes of an active notice whose subject is seen like that."""
    if notice.state is not NoticeState.ACTIVE or now < settles_at(notice, seen, policy):
        return notice
    return replace(notice, state=_end(notice, seen), ended_at=now)


def _end(notice: ReclaimNotice, seen: Presence) -> NoticeState:
    if notice.simulated:
        return NoticeState.WITHDRAWN
    return NoticeState.EXPIRED if seen is Presence.THERE else NoticeState.GONE


def settles_at(notice: ReclaimNotice, seen: Presence, policy: Policy) -> float:
    """The instant at which `settle` will change an active notice, if nothing else does before.

    A drill is over with its deadline, whatever is seen: its subject does not go.
    """
    if notice.simulated:
        return deadline_of(notice, policy)
    match seen:
        case Presence.THERE:
            return deadline_of(notice, policy) + policy.expire_seconds
        case Presence.SILENT:
            return deadline_of(notice, policy) + policy.gone_grace_seconds
        case Presence.GONE:
            # Whoever sees subjects may be a moment behind whoever told of this one.
            return notice.first_seen + policy.gone_grace_seconds


def replaced(notice: ReclaimNotice, uid: str, now: float) -> ReclaimNotice:
    """A machine with another uid speaks under this name: the noticed one is gone."""
    if notice.state is NoticeState.ACTIVE and notice.subject.uid != uid:
        return replace(notice, state=NoticeState.GONE, ended_at=now)
    return notice


def deadline_of(notice: ReclaimNotice, policy: Policy) -> float:
    """When the subject is gone: announced, or assumed where the source names no time."""
    return notice.deadline if notice.deadline is not None else notice.first_seen + policy.default_lead_seconds


@dataclass(frozen=True, slots=True)
class Today:
    """What is known of the nodes of today, to tell which notices are about them.

    Attributes:
        machines: The machines whose agents are connected, by uid.
        objects: The uids of the cluster's node objects.
        clear: The nodes whose own metadata has just been asked, and has no notice.
    """

    machines: Mapping[Host, str] = field(default_factory=dict)
    objects: Mapping[Host, str] = field(default_factory=dict)
    clear: Container[Host] = frozenset()


def noticed_hosts(notices: Iterable[ReclaimNotice], today: Today, policy: Policy) -> dict[Host, ReclaimNotice]:
    """The hosts that must not be used, each with its most urgent notice."""
    hosts: dict[Host, ReclaimNotice] = {}
    for notice in notices:
        host = Host(notice.subject.name)
        if not notice.holds or notice.subject.kind is not SubjectKind.NODE or not _binds(notice, host, today):
            continue
        if host not in hosts or deadline_of(notice, policy) < deadline_of(hosts[host], policy):
            hosts[host] = notice
    return hosts


def _binds(notice: ReclaimNotice, host: Host, today: Today) -> bool:
    """Not one on an earlier machine of the name, nor what others say of a node that knows better itself.

    Node problem detectors announce a reclaim when they lose their network, too.
    """
    if notice.simulated:  # By the machine's uid or the object's, and nobody knows better: it is meant to be untrue.
        present_uids = {uids[host] for uids in (today.machines, today.objects) if host in uids}
        return not present_uids or notice.subject.uid in present_uids
    from_api = notice.source in API_SOURCES
    if from_api and host in today.clear:
        return False
    present = today.objects if from_api else today.machines
    return present.get(host, notice.subject.uid) == notice.subject.uid


def noticed_pods(notices: Iterable[ReclaimNotice], policy: Policy) -> dict[str, ReclaimNotice]:
    """The pods that must not be used, by uid, each with its most urgent notice."""
    pods: dict[str, ReclaimNotice] = {}
    for notice in notices:
        if notice.holds and notice.subject.kind is SubjectKind.POD:
            pods[notice.subject.uid] = most_urgent([notice, pods.get(notice.subject.uid)], policy) or notice
    return pods


def most_urgent(notices: Iterable[ReclaimNotice | None], policy: Policy) -> ReclaimNotice | None:
    """The one whose subject is gone first; None where there is none."""
    held = (notice for notice in notices if notice is not None)
    return min(held, key=lambda notice: (deadline_of(notice, policy), notice.id), default=None)


def _recounted(known: ReclaimNotice, report: Report, now: float) -> ReclaimNotice:
    """The notice after its last report was said again, as in the hello to a supervisor that has been started again.

    Such a supervisor may count by another clock than the one that stored the deadline, and may even have ended the
    notice by it. The seconds that are left were counted by the agent when it spoke, so they are right.
    """
    repeated = (report.session, report.revision) == (known.session, known.revision)
    if not repeated or report.announcement is not Announcement.ACTIVE or report.seconds_left is None:
        return known
    deadline = now + report.seconds_left
    if known.state is NoticeState.ACTIVE:
        moved = known.deadline is None or abs(deadline - known.deadline) > _DRIFT_SECONDS
        return replace(known, deadline=deadline) if moved else known
    if _ended_early(known, report):
        return replace(known, state=NoticeState.ACTIVE, deadline=deadline, ended_at=None)
    return known


def _ended_early(known: ReclaimNotice, report: Report) -> bool:
    """Whether time has ended the notice of a node whose agent speaks, and says that there is time left."""
    by_time = known.state in (NoticeState.EXPIRED, NoticeState.GONE)
    return by_time and known.subject.kind is SubjectKind.NODE and (report.seconds_left or 0.0) > 0


def _announced(known: ReclaimNotice, report: Report, now: float, policy: Policy) -> ReclaimNotice:
    if known.state is NoticeState.GONE and known.subject.kind is SubjectKind.POD:
        # Its uid never comes back: the same end, told by the next session.
        return replace(known, session=report.session, revision=report.revision)
    if known.state is NoticeState.ACTIVE:
        return _updated(known, report, now)
    if known.state is NoticeState.EXPIRED and _passed(report, policy):
        return _updated(known, report, now)  # The same old announcement, told by the next session.
    return _episode(report, known.episode + 1, now, policy)


def _withdrawn(known: ReclaimNotice | None, report: Report, now: float) -> ReclaimNotice | None:
    """A withdrawal of what has ended already still makes later all reports that are older than it."""
    if known is None:
        return None
    known = replace(known, session=report.session, revision=report.revision)
    return replace(known, state=NoticeState.WITHDRAWN, ended_at=now) if known.holds else known


def _updated(known: ReclaimNotice, report: Report, now: float) -> ReclaimNotice:
    deadline = _deadline(report, now)
    if deadline is not None and known.deadline is not None and not known.announced and not report.announced:
        # Neither names an instant: a usual lead counts from its first sight, also for an agent that was started again.
        deadline = min(known.deadline, deadline)
    return replace(
        known,
        deadline=deadline,
        announced=report.announced,
        message=report.message,
        session=report.session,
        revision=report.revision,
    )


def _episode(report: Report, episode: int, now: float, policy: Policy) -> ReclaimNotice:
    expired = _passed(report, policy)
    return ReclaimNotice(
        source=report.source,
        subject=report.subject,
        episode=episode,
        state=NoticeState.EXPIRED if expired else NoticeState.ACTIVE,
        first_seen=now,
        deadline=_deadline(report, now),
        announced=report.announced,
        message=report.message,
        session=report.session,
        revision=report.revision,
        ended_at=now if expired else None,
    )


def _deadline(report: Report, now: float) -> float | None:
    return None if report.seconds_left is None else now + report.seconds_left


def _is_over(report: Report) -> bool:
    """Whether it tells of a drill whose time has passed, which must not begin anew."""
    return report.source == SIMULATED and report.seconds_left is not None and report.seconds_left <= 0


def _passed(report: Report, policy: Policy) -> bool:
    return report.seconds_left is not None and report.seconds_left <= -policy.expire_seconds
