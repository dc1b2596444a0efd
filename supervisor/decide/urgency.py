"""Decides when a notice counts (at once, shortly before its deadline, or never), and which hosts it excludes.

Everything else decides on the notices that are acted on, and is the same for all classes.
"""

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from supervisor.decide.policy import Policy
from supervisor.domain.ids import Host, Source
from supervisor.domain.notice import API_SOURCES, OF_PEOPLE, NoticeClass, NoticeState, ReclaimNotice, SubjectKind


@dataclass(frozen=True, slots=True)
class NoticesByUrgency:
    """The notices at one moment, divided by whether the supervisor acts on them.

    Attributes:
        acted_on: Their subjects must not be used. A scheduled notice is here as a sudden one that was announced when it
            became due.
        ahead: Hints, and scheduled notices that are not due yet.
        changes_at: When time alone changes what is to be done about one of them; None: never.
    """

    acted_on: tuple[ReclaimNotice, ...] = ()
    ahead: tuple[ReclaimNotice, ...] = ()
    changes_at: float | None = None


def by_urgency(notices: Iterable[ReclaimNotice], now: float, policy: Policy) -> NoticesByUrgency:
    """Divides notices into those that the supervisor acts on, and active ones that it does not act on yet."""
    acted_on: list[ReclaimNotice] = []
    ahead: list[ReclaimNotice] = []
    for notice in notices:
        if notice.notice_class is NoticeClass.SUDDEN:
            acted_on.append(notice)
        elif is_acted_on(notice, now, policy):
            # As if it had been announced when it became due.
            acted_on.append(replace(notice, first_seen=acted_on_at(notice, policy)))
        elif notice.state is NoticeState.ACTIVE:
            ahead.append(notice)
    moments = (at for notice in ahead if (at := next_change(notice, now, policy)) is not None)
    return NoticesByUrgency(tuple(acted_on), tuple(ahead), min(moments, default=None))


def is_acted_on(notice: ReclaimNotice, now: float, policy: Policy) -> bool:
    """Whether it is time to act on a notice. A notice that ended before that has no effect, however it ended."""
    return acted_on_at(notice, policy) <= (now if notice.ended_at is None else min(now, notice.ended_at))


def acted_on_at(notice: ReclaimNotice, policy: Policy) -> float:
    """From when on jobs leave the subject; infinite for a hint, and for a schedule without a time."""
    match notice.notice_class:
        case NoticeClass.SUDDEN:
            return -math.inf  # At once, also for a replica whose clock is behind the one that stored the notice.
        case NoticeClass.SCHEDULED if notice.deadline is not None:
            return max(notice.first_seen, notice.deadline - policy.scheduled_horizon_seconds)
        case _:
            return math.inf


def avoided_at(notice: ReclaimNotice, policy: Policy) -> float:
    """From when on no run starts or grows on the subject; infinite for a hint, as its subject is only used last."""
    if notice.notice_class is NoticeClass.SCHEDULED and notice.deadline is not None:
        ahead = max(policy.scheduled_avoid_seconds, policy.scheduled_horizon_seconds)
        return max(notice.first_seen, notice.deadline - ahead)
    return acted_on_at(notice, policy)


def checkpoint_at(notice: ReclaimNotice, policy: Policy) -> float:
    """When the supervisor requests a checkpoint of the job's processes; infinite for a sudden notice.

    For a scheduled one this is a horizon before it is acted on, so that the checkpoint is complete by then.
    """
    if notice.notice_class is NoticeClass.SUDDEN:
        return math.inf
    if notice.deadline is None:
        return notice.first_seen
    return max(notice.first_seen, notice.deadline - 2 * policy.scheduled_horizon_seconds)


def next_change(notice: ReclaimNotice, now: float, policy: Policy) -> float | None:
    """The next instant at which time alone changes how an active notice is treated; None if there is none."""
    moments = (each(notice, policy) for each in (acted_on_at, avoided_at, checkpoint_at))
    return min((at for at in moments if now < at < math.inf), default=None)


_USUAL_LEADS = {Source("aws"): 120.0, Source("gcp"): 30.0, Source("azure"): 30.0, Source("tencent"): 120.0}
"""Seconds that these clouds give at least, for a notice that names neither an instant nor the seconds left."""


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

    `notices` are those that are acted on, see `supervisor.decide.urgency`: their hosts must not be used.
    """
    hosts: dict[Host, ReclaimNotice] = {}
    for notice in notices:
        host = Host(notice.subject.name)
        if not notice.holds or notice.subject.kind is not SubjectKind.NODE or not binds(notice, identities):
            continue
        if host not in hosts or deadline_of(notice, policy) < deadline_of(hosts[host], policy):
            hosts[host] = notice
    return hosts


def binds(notice: ReclaimNotice, identities: NodeIdentities) -> bool:
    """Whether a notice concerns the present node of its name. That of a pod does: no other pod has its uid.

    Notices on an earlier machine do not. Sudden notices of the API server do not if the node's own metadata denies
    them: node problem detectors also announce a reclaim when they lose their network.
    """
    if notice.subject.kind is not SubjectKind.NODE:
        return True
    host = Host(notice.subject.name)
    if notice.source in OF_PEOPLE:
        present_uids = {uids[host] for uids in (identities.machines, identities.objects) if host in uids}
        return not present_uids or notice.subject.uid in present_uids
    from_api = notice.source in API_SOURCES
    if from_api and notice.notice_class is NoticeClass.SUDDEN and host in identities.clear:
        return False
    present = identities.objects if from_api else identities.machines
    return present.get(host, notice.subject.uid) == notice.subject.uid


def binding(notices: Iterable[ReclaimNotice], identities: NodeIdentities) -> Mapping[str, Sequence[ReclaimNotice]]:
    """The notices that concern present subjects: those on nodes by the node's name, those on pods by the pod's uid."""
    found: dict[str, list[ReclaimNotice]] = {}
    for notice in notices:
        if binds(notice, identities):
            is_node = notice.subject.kind is SubjectKind.NODE
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
