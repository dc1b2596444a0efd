"""How reports and time change notices, and which hosts notices exclude."""

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from supervisor.decide.policy import Policy
from supervisor.domain.ids import Host, Source
from supervisor.domain.notice import (
    API_SOURCES,
    OF_PEOPLE,
    OPERATOR,
    SIMULATED,
    Announcement,
    NoticeClass,
    NoticeState,
    ReclaimNotice,
    Report,
    SubjectKind,
)

_DRIFT_SECONDS = 2.0
"""Deadlines that differ by less are the same: the transmission time of reports varies."""

_USUAL_LEADS = {Source("aws"): 120.0, Source("gcp"): 30.0, Source("azure"): 30.0, Source("tencent"): 120.0}
"""Seconds that these clouds give at least, for a notice that names neither an instant nor the seconds left."""


def apply_report(known: ReclaimNotice | None, report: Report, now: float, policy: Policy) -> ReclaimNotice | None:
    """Applies a report: returns the notice to store, or `known` itself if the report changes nothing.

    Late and reordered reports are ignored by session and revision. A repeated one only updates the deadline.
    """
    if known is not None and (report.session, report.revision) <= (known.session, known.revision):
        return _recounted(known, report, now)
    if report.announcement is Announcement.WITHDRAWN or _is_over(report):
        return _withdrawn(known, report, now)
    return _episode(report, 1, now, policy) if known is None else _announced(known, report, now, policy)


class Presence(StrEnum):
    """Whether the subject of a notice exists.

    THERE: it is visible, or its agent is connected. SILENT: it is not, which proves nothing before the deadline.
    GONE: the API server shows that it does not exist.
    """

    PRESENT = "there"
    SILENT = "silent"
    GONE = "gone"


def end_if_due(notice: ReclaimNotice, presence: Presence, now: float, policy: Policy) -> ReclaimNotice:
    """Ends an active notice if its time has come."""
    if notice.state is not NoticeState.ACTIVE or now < ends_at(notice, presence, policy):
        return notice
    return replace(notice, state=_end(notice, presence), ended_at=now)


def _end(notice: ReclaimNotice, presence: Presence) -> NoticeState:
    """A notice that names no time announces no end, so a subject that is not seen any more proves no reclaim."""
    if notice.simulated:
        return NoticeState.WITHDRAWN
    return NoticeState.EXPIRED if is_timeless(notice) or presence is Presence.PRESENT else NoticeState.GONE


def ends_at(notice: ReclaimNotice, presence: Presence, policy: Policy) -> float:
    """The instant at which `end_if_due` ends an active notice, if nothing else does before.

    A drill ends at its deadline, as its subject stays; a drain if the subject is gone. A notice that names no time to
    act stands until it is withdrawn or its subject is not seen any more.
    """
    if notice.simulated:
        return deadline_of(notice, policy)
    if presence is not Presence.GONE and notice.drains:
        return math.inf
    if presence is Presence.PRESENT and is_timeless(notice):
        return math.inf
    match presence:
        case Presence.PRESENT:
            return deadline_of(notice, policy) + policy.expire_seconds
        case Presence.SILENT:
            return deadline_of(notice, policy) + policy.gone_grace_seconds
        case Presence.GONE:
            # The cache may be a moment behind the source of the notice.
            return notice.first_seen + policy.gone_grace_seconds


def silence_grace(notice: ReclaimNotice, policy: Policy) -> float:
    """How long the subject of a notice that is due must have been silent before the notice ends."""
    # An agent that is upgraded must not end a hint, which it would announce again as a new one.
    return policy.expire_seconds if is_timeless(notice) else policy.gone_grace_seconds


def replaced(notice: ReclaimNotice, uid: str, now: float) -> ReclaimNotice:
    """Ends a notice because a machine with another uid now has the node's name."""
    if notice.state is NoticeState.ACTIVE and notice.subject.uid != uid:
        return replace(notice, state=_end(notice, Presence.GONE), ended_at=now)
    return notice


def deadline_of(notice: ReclaimNotice, policy: Policy) -> float:
    """The instant at which the subject is expected to be gone; assumed if the source names no time."""
    if notice.deadline is not None:
        return notice.deadline
    return notice.first_seen + _USUAL_LEADS.get(notice.source, policy.default_lead_seconds)


def is_timeless(notice: ReclaimNotice) -> bool:
    """Whether nobody knows when to act on the notice: a hint, or a schedule without a time."""
    return notice.notice_class is not NoticeClass.SUDDEN and notice.deadline is None


@dataclass(frozen=True, slots=True)
class NodeIdentities:
    """The identities of the present nodes, which decide the notices that concern them.

    Attributes:
        machines: The machine uids of the nodes whose agents are connected.
        objects: The uids of the cluster's Node objects.
        clear: The nodes whose metadata service answers at present that there is no notice.
    """

    machines: Mapping[Host, str] = field(default_factory=dict)
    objects: Mapping[Host, str] = field(default_factory=dict)
    clear: Container[Host] = frozenset()


def noticed_hosts(
    notices: Iterable[ReclaimNotice], identities: NodeIdentities, policy: Policy
) -> dict[Host, ReclaimNotice]:
    """The hosts of the notices, each with its most urgent one.

    `notices` are those that are acted on, see `supervisor.decide.classes`: their hosts must not be used.
    """
    hosts: dict[Host, ReclaimNotice] = {}
    for notice in notices:
        host = Host(notice.subject.name)
        if not notice.holds or notice.subject.kind is not SubjectKind.NODE or not _binds(notice, host, identities):
            continue
        if host not in hosts or deadline_of(notice, policy) < deadline_of(hosts[host], policy):
            hosts[host] = notice
    return hosts


def _binds(notice: ReclaimNotice, host: Host, identities: NodeIdentities) -> bool:
    """Whether a notice concerns the present node of its name.

    Notices on an earlier machine do not. Sudden notices of the API server do not if the node's own metadata denies
    them: node problem detectors also announce a reclaim when they lose their network.
    """
    if notice.source in OF_PEOPLE:
        present_uids = {uids[host] for uids in (identities.machines, identities.objects) if host in uids}
        return not present_uids or notice.subject.uid in present_uids
    from_api = notice.source in API_SOURCES
    if from_api and notice.notice_class is NoticeClass.SUDDEN and host in identities.clear:
        return False
    present = identities.objects if from_api else identities.machines
    return present.get(host, notice.subject.uid) == notice.subject.uid


def binding(notices: Iterable[ReclaimNotice], identities: NodeIdentities) -> Mapping[str, Sequence[ReclaimNotice]]:
    """The notices that concern a present subject: on nodes by the node's name, on pods by the pod's uid."""
    found: dict[str, list[ReclaimNotice]] = {}
    for notice in notices:
        is_node = notice.subject.kind is SubjectKind.NODE
        if not is_node or _binds(notice, Host(notice.subject.name), identities):
            found.setdefault(notice.subject.name if is_node else notice.subject.uid, []).append(notice)
    return found


def noticed_pods(notices: Iterable[ReclaimNotice], policy: Policy) -> dict[str, ReclaimNotice]:
    """The pods of the notices by uid, each with its most urgent one; see `noticed_hosts`."""
    pods: dict[str, ReclaimNotice] = {}
    for notice in notices:
        if notice.holds and notice.subject.kind is SubjectKind.POD:
            pods[notice.subject.uid] = most_urgent([notice, pods.get(notice.subject.uid)], policy) or notice
    return pods


def most_urgent(notices: Iterable[ReclaimNotice | None], policy: Policy) -> ReclaimNotice | None:
    """The notice with the earliest deadline; None if there is none."""
    held = (notice for notice in notices if notice is not None)
    return min(held, key=lambda notice: (deadline_of(notice, policy), notice.id), default=None)


def _recounted(known: ReclaimNotice, report: Report, now: float) -> ReclaimNotice:
    """Applies a repetition of the last report, as in the hello after a restart of the supervisor.

    The supervisor's clock may differ from the one that stored the deadline, and may even have ended the notice. The
    agent counted the remaining seconds when it sent the report, so they are right.
    """
    repeated = (report.session, report.revision) == (known.session, known.revision)
    if not repeated or report.announcement is not Announcement.ACTIVE or report.seconds_left is None:
        return known
    deadline = _deadline(report, now)
    if deadline is None:
        return known
    if known.state is NoticeState.ACTIVE:
        moved = known.deadline is None or abs(deadline - known.deadline) > _DRIFT_SECONDS
        return replace(known, deadline=deadline) if moved else known
    if _ended_early(known, report):
        return replace(known, state=NoticeState.ACTIVE, deadline=deadline, ended_at=None)
    return known


def _ended_early(known: ReclaimNotice, report: Report) -> bool:
    """Whether time ended a notice although the node's agent reports that there is time left."""
    by_time = known.state in (NoticeState.EXPIRED, NoticeState.GONE)
    return by_time and known.subject.kind is SubjectKind.NODE and (report.seconds_left or 0.0) > 0


def _announced(known: ReclaimNotice, report: Report, now: float, policy: Policy) -> ReclaimNotice:
    if known.state is NoticeState.GONE and known.subject.kind is SubjectKind.POD:
        # A pod's uid is never reused: the next session repeats the same announcement.
        return replace(known, session=report.session, revision=report.revision)
    if known.state is NoticeState.ACTIVE:
        return _updated(known, report, now)
    if known.state is NoticeState.EXPIRED and _passed(report, policy):
        return _updated(known, report, now)  # The next session repeats the same old announcement.
    return _episode(report, known.episode + 1, now, policy)


def _withdrawn(known: ReclaimNotice | None, report: Report, now: float) -> ReclaimNotice | None:
    """Withdraws a notice. If it has already ended, only session and revision change, so that older reports lose."""
    if known is None:
        return None
    known = replace(known, session=report.session, revision=report.revision)
    return replace(known, state=NoticeState.WITHDRAWN, ended_at=now) if known.holds else known


def _updated(known: ReclaimNotice, report: Report, now: float) -> ReclaimNotice:
    deadline, is_same_class = _deadline(report, now), report.notice_class is known.notice_class
    names_no_instant = is_same_class and not known.announced and not report.announced
    if deadline is not None and known.deadline is not None and names_no_instant:
        # Neither names an instant: the usual lead counts from the first report, also after a restart of the agent.
        deadline = min(known.deadline, deadline)
    return replace(
        known,
        # A group of notices is collected, and an assumed lead counts, from when there was a reason to act.
        first_seen=known.first_seen if is_same_class else now,
        deadline=deadline,
        announced=report.announced,
        message=report.message,
        notice_class=report.notice_class,
        cancellable=report.cancellable,
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
        notice_class=report.notice_class,
        cancellable=report.cancellable,
        session=report.session,
        revision=report.revision,
        ended_at=now if expired else None,
    )


def _deadline(report: Report, now: float) -> float | None:
    if report.seconds_left is None or report.notice_class is NoticeClass.HINT:
        return None
    return now + report.seconds_left


def _is_over(report: Report) -> bool:
    """Whether the report is about a drill whose deadline has passed, which must not start again."""
    return report.source == SIMULATED and report.seconds_left is not None and report.seconds_left <= 0


def _passed(report: Report, policy: Policy) -> bool:
    stands = report.notice_class is NoticeClass.HINT or report.source == OPERATOR
    return not stands and report.seconds_left is not None and report.seconds_left <= -policy.expire_seconds
