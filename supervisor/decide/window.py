"""When the noticed hosts of a group are excluded, if the run continues without them."""

from collections.abc import Collection

from supervisor.decide.agreement import ROUND_SECONDS
from supervisor.decide.notices import deadline_of
from supervisor.decide.situation import Situation
from supervisor.domain.ids import Host
from supervisor.domain.notice import ReclaimNotice

_STEPS_OF_MARGIN = 10
"""Steps between the exclusion and the first deadline: elastic Horovod reads the list of hosts when it commits."""


def window_end(s: Situation, pending: Collection[Host]) -> float:
    """When all pending hosts are excluded, in one change (Unix seconds).

    If it is known how long the run takes to go on without them, that is just before the first of them goes: until then
    all of them train, others can join the group, and notices can be withdrawn. Otherwise it is as soon as the group is
    complete.
    """
    notices = [s.facts.notices[host] for host in pending]
    complete, first = _complete_at(s, notices), _usable_until(s, notices, pending)
    if first is None:
        return complete
    needed, held = _seconds_to_leave(s), s.previous.window_until
    last = first - s.policy.margin_seconds - (needed or 0.0)
    if held is not None and complete < held <= last:
        # A new end would cost a write. After a restart, the processes first have to say again how long a step takes.
        return held
    if needed is None:
        return complete
    # A step earlier: the end remains the same if later steps take a little longer.
    return max(complete, _stored(last - (s.facts.ranks.slowest_step or 0.0)))


def _complete_at(s: Situation, notices: Collection[ReclaimNotice]) -> float:
    """A window after the first notice of the group, or earlier if its first deadline requires that.

    A supervisor that could not receive notices until just now waits for a whole window, and deadlines before that do
    not shorten it.
    """
    until = max(s.facts.since, min(notice.first_seen for notice in notices)) + s.policy.window_seconds
    deadlines = [deadline_of(notice, s.policy) for notice in notices]
    return _stored(min([until, *(at - s.policy.margin_seconds for at in deadlines if at > s.facts.since)]))


def _stored(instant: float) -> float:
    """The instant as the store keeps it. A more precise one would be a new decision in every pass."""
    return round(instant, 6)


def _usable_until(s: Situation, notices: Collection[ReclaimNotice], pending: Collection[Host]) -> float | None:
    """When the first host goes. None: the job acts at once, as configured, or because it may go at any time.

    That is so if a source names no time, and if a pod was asked to terminate: its processes have received SIGTERM.
    """
    if not s.policy.just_in_time or not s.facts.terminating.isdisjoint(pending):
        return None
    known = [notice.deadline for notice in notices if notice.deadline is not None]
    return min(known) if len(known) == len(notices) else None


def _seconds_to_leave(s: Situation) -> float | None:
    """How long a run takes at most to go on without some of its hosts; None if that is unknown.

    The ranks of a torchrun job first agree on a step, and rank 0 may save after it.
    """
    step, checkpoint = s.facts.ranks.slowest_step, s.facts.ranks.slowest_checkpoint
    if step is None:
        return None
    if not s.facts.members:
        return _STEPS_OF_MARGIN * step
    return None if checkpoint is None else _STEPS_OF_MARGIN * step + 2 * ROUND_SECONDS + checkpoint
