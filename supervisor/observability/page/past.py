"""Reads notices from the entries of the record: when each came, and how it ended. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from supervisor.domain.ledger import HeldOn
from supervisor.domain.notice import OF_PEOPLE, NoticeState, ReclaimNotice
from supervisor.observability.record.pool_counts import PoolCounts
from supervisor.observability.views import HistoryEntryView, HistoryView


@dataclass(slots=True, kw_only=True)
class RecordRead:
    """What was read of the record before it could not be read; `trouble` is a sentence about that, or empty.

    Attributes:
        counts: The notices of all capacity pools, by the hour.
        held: The worker-seconds on each kind of machine.
        past: The latest entries about one thing.
        notices: The latest of these that are of notices.
        trouble: Why the rest is None.
    """

    counts: PoolCounts | None = None
    held: Mapping[HeldOn, float] | None = None
    past: HistoryView | None = None
    notices: HistoryView | None = None
    trouble: str = ""


NOTICED = "noticed"
"""What the entry of a notice that came says."""

ENDS = frozenset({NoticeState.WITHDRAWN, NoticeState.GONE, NoticeState.EXPIRED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Reclaim:
    """A notice of the past. Instants are Unix seconds.

    Attributes:
        subject: `node/NAME` or `pod/NAMESPACE/NAME`.
        source: Who announced it.
        noticed_at: When it came; None if that is earlier than what was read.
        ended_at: When it ended; None if it goes on, as far as the record knows.
        end: How it ended, a state of a notice; empty if it goes on.
        text: The latest sentence about it.
        drill: Whether it was a drill.
        is_lost: Whether it goes on no more, and its end is in no record that can be read: another supervisor saw it.
    """

    subject: str
    source: str
    noticed_at: float | None
    ended_at: float | None = None
    end: str = ""
    text: str
    drill: bool = False
    is_lost: bool = False

    @property
    def of_people(self) -> bool:
        """Whether a person has announced it: a drill or a drain."""
        return self.source in OF_PEOPLE

    @property
    def seconds(self) -> float | None:
        """The time from the notice to its end; None if one of them is unknown."""
        if self.noticed_at is None or self.ended_at is None:
            return None
        return max(0.0, self.ended_at - self.noticed_at)


def reclaims_of(entries: Iterable[HistoryEntryView], present: Iterable[ReclaimNotice]) -> Sequence[Reclaim]:
    """Joins the entries of notices, the earliest first, to reclaims, the latest first.

    `present` are the notices that the leader has. Without a shared database, the record of an earlier leader may have
    the end of a notice: it does not go on only because this record has no end of it.
    """
    latest: dict[tuple[str, str], ReclaimNotice] = {}
    for notice in sorted(present, key=lambda each: each.first_seen):
        latest[f"{notice.subject.kind}/{notice.subject.name}", notice.source] = notice
    found = list[Reclaim]()
    later = set[tuple[str, str]]()
    for each in _joined(entries):
        key = (each.subject, each.source)
        found.append(each if each.end else _ended(each, None if key in later else latest.get(key)))
        later.add(key)
    return found


def _ended(reclaim: Reclaim, notice: ReclaimNotice | None) -> Reclaim:
    """Completes a notice without an end by what the leader has of it, None if that is nothing."""
    if notice is not None and notice.state is NoticeState.ACTIVE:
        return reclaim
    if notice is None or notice.ended_at is None or notice.ended_at < (reclaim.noticed_at or 0.0):
        return replace(reclaim, is_lost=True)
    return replace(reclaim, ended_at=notice.ended_at, end=notice.state)


def _joined(entries: Iterable[HistoryEntryView]) -> Sequence[Reclaim]:
    found: list[Reclaim] = []
    open_by: dict[tuple[str, str], int] = {}
    for entry in entries:
        if not entry.source:
            continue
        key = (entry.subject, entry.source)
        if entry.what == NOTICED:
            open_by[key] = len(found)
            found.append(_begun(entry, entry.at))
        elif entry.what in ENDS:
            at = open_by.pop(key, None)
            begun = _begun(entry, None) if at is None else found[at]
            ended = Reclaim(
                subject=entry.subject,
                source=entry.source,
                noticed_at=begun.noticed_at,
                ended_at=entry.at,
                end=entry.what,
                text=entry.text,
                drill=entry.drill,
            )
            if at is None:
                found.append(ended)
            else:
                found[at] = ended
    return found[::-1]


def _begun(entry: HistoryEntryView, at: float | None) -> Reclaim:
    return Reclaim(subject=entry.subject, source=entry.source, noticed_at=at, text=entry.text, drill=entry.drill)
