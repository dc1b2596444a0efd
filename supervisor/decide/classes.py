"""When a notice of each class matters: at once, shortly before its deadline, or never.

Everything else decides on the notices that are acted on, and is the same for all classes.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from supervisor.decide.policy import Policy
from supervisor.domain.notice import NoticeClass, NoticeState, ReclaimNotice


@dataclass(frozen=True, slots=True)
class NoticesByUrgency:
    """Notices at one moment.

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
    """Divides notices into those that are acted on and active ones that are not yet."""
    acted_on: list[ReclaimNotice] = []
    ahead: list[ReclaimNotice] = []
    for notice in notices:
        if notice.notice_class is NoticeClass.SUDDEN:
            acted_on.append(notice)
        elif is_acted_on(notice, now, policy):
            acted_on.append(as_sudden(notice, policy))
        elif notice.state is NoticeState.ACTIVE:
            ahead.append(notice)
    moments = (at for notice in ahead if (at := next_change(notice, now, policy)) is not None)
    return NoticesByUrgency(tuple(acted_on), tuple(ahead), min(moments, default=None))


def is_acted_on(notice: ReclaimNotice, now: float, policy: Policy) -> bool:
    """Whether it is time to act on a notice. One that ended before that has no effect, however it ended."""
    return acted_on_at(notice, policy) <= (now if notice.ended_at is None else min(now, notice.ended_at))


def acted_on_at(notice: ReclaimNotice, policy: Policy) -> float:
    """From when on the job moves away; infinite for a hint, and for a schedule without a time."""
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
    """When the job's processes are asked for a checkpoint; infinite for a sudden notice.

    For a scheduled one this is a horizon before it is acted on, so that the checkpoint is complete by then.
    """
    if notice.notice_class is NoticeClass.SUDDEN:
        return math.inf
    if notice.deadline is None:
        return notice.first_seen
    return max(notice.first_seen, notice.deadline - 2 * policy.scheduled_horizon_seconds)


def next_change(notice: ReclaimNotice, now: float, policy: Policy) -> float | None:
    """The next instant at which time alone changes what is to be done about an active notice; None if there is none."""
    moments = (each(notice, policy) for each in (acted_on_at, avoided_at, checkpoint_at))
    return min((at for at in moments if now < at < math.inf), default=None)


def as_sudden(notice: ReclaimNotice, policy: Policy) -> ReclaimNotice:
    """A notice that is acted on, as if it had been announced when it became due."""
    return replace(notice, first_seen=acted_on_at(notice, policy))
