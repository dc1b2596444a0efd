"""Selects what the page of one decided group shows, from the leader's memory and from the record. Pure."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from supervisor.domain.ids import JobName
from supervisor.domain.job import Phase
from supervisor.ingest.errors import MalformedError
from supervisor.observability.page.past import NOTICED, Reclaim, reclaims_of
from supervisor.observability.status_view import StatusPage, StatusSnapshot, status_view
from supervisor.observability.views import GroupView, HistoryEntryView, HistoryView

_INSTANT = re.compile(r"[0-9]{1,12}\.[0-9]{1,6}", re.ASCII)
_TOLERANCE_SECONDS = 5e-6
"""More than an instant loses in an address: it has microseconds there."""

_DECISIONS = frozenset({Phase.SHRINKING, Phase.STOPPING, Phase.SUSPENDED, Phase.QUEUED, Phase.RESUMING, Phase.RUNNING})
_OVER = frozenset({Phase.RUNNING, Phase.TIMED_OUT, Phase.FINISHED, "Gone"})
"""What an entry says with which the consequences of a group are over. `Gone`: the job was deleted."""

_CHECKPOINT = "Checkpoint"


@dataclass(frozen=True, slots=True)
class GroupId:
    """Names a decision about a job by its instant (Unix seconds), which the record has, too."""

    job: JobName
    at: float

    @classmethod
    def read(cls, at: str, job: str) -> "GroupId":
        """Reads the two parts of an id.

        Raises:
            MalformedError: It is none. The message is a sentence.
        """
        if not _INSTANT.fullmatch(at):
            raise MalformedError("This address names no decision: it has no instant.")
        return cls(JobName(job), float(at))

    def is_at(self, instant: float) -> bool:
        """Whether an instant is that of the decision."""
        return abs(instant - self.at) < _TOLERANCE_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupContents:
    """What the page of a group shows. Instants are Unix seconds; None is unknown.

    Attributes:
        id: The group.
        now: When that was read.
        group: What the leader knows of it; None if it has forgotten it, or another supervisor has decided it.
        decided: The entry of the decision; None if the record does not have it.
        notices: The notices that it was about, as far as the record has them, the earliest first.
        answers: The entries of the answers of ranks to it.
        entries: The entries of the job from the decision on, until its consequences were over, the earliest first.
        suspended_at: When the job was suspended.
        resumed_at: When its consequences were over.
        cut: Whether there were too many entries to have all.
    """

    id: GroupId
    now: float
    group: GroupView | None
    decided: HistoryEntryView | None
    notices: Sequence[Reclaim]
    answers: Sequence[HistoryEntryView]
    entries: Sequence[HistoryEntryView]
    suspended_at: float | None
    resumed_at: float | None
    cut: bool

    @property
    def is_known(self) -> bool:
        """Whether anything is known of such a decision."""
        return self.group is not None or self.decided is not None

    @property
    def reason(self) -> str:
        """Why it was decided."""
        if self.group is not None:
            return self.group.reason
        return "" if self.decided is None else self.decided.text

    @property
    def others(self) -> Sequence[str]:
        """The nodes and pods that the decision concerned of which the record has no notice in this time."""
        found = {notice.subject for notice in self.notices}
        concerns = () if self.decided is None else self.decided.concerns
        return [each for each in concerns if not each.startswith("pool/") and each not in found]

    @property
    def pools(self) -> Sequence[str]:
        """The capacity pools of the nodes that it was about."""
        concerns = () if self.decided is None else self.decided.concerns
        return [each.removeprefix("pool/") for each in concerns if each.startswith("pool/")]


def group_contents(snapshot: StatusSnapshot, wanted: GroupId, past: HistoryView | None) -> GroupContents:
    """Returns what is known of a group; `past` has what happened to the job about then, None if it cannot be read."""
    known = tuple(group for group in snapshot.groups if group.job == wanted.job and wanted.is_at(group.at))[:1]
    view = status_view(replace(snapshot, groups=known), StatusPage())
    entries = [] if past is None else past.entries
    of_job = [each for each in entries if each.subject == f"job/{wanted.job}"]
    decided = next((each for each in of_job if wanted.is_at(each.at) and each.what in _DECISIONS), None)
    following = list(_consequences(of_job, decided, wanted))
    concerns = set(() if decided is None else decided.concerns)
    before = [each for each in entries if each.subject in concerns and _is_about(each, wanted)]
    return GroupContents(
        id=wanted,
        now=snapshot.now,
        group=next(iter(view.groups), None),
        decided=decided,
        notices=[each for each in reclaims_of(before, snapshot.notices)[::-1] if each.noticed_at is not None],
        answers=[each for each in following if each.what == _CHECKPOINT],
        entries=following,
        suspended_at=_first(following, {Phase.SUSPENDED, Phase.QUEUED}),
        resumed_at=_first(following[1:], _OVER),
        cut=past is not None and past.cut,
    )


def _is_about(entry: HistoryEntryView, wanted: GroupId) -> bool:
    """Whether the entry of a notice belongs to the time of the decision: a later notice is of a later group."""
    return entry.what != NOTICED or entry.at <= wanted.at + _TOLERANCE_SECONDS


def _consequences(
    of_job: Iterable[HistoryEntryView], decided: HistoryEntryView | None, wanted: GroupId
) -> Iterator[HistoryEntryView]:
    """Yields the entries from the decision on, until it is over or the job is stopped once more."""
    has_begun = False
    for entry in of_job:
        if entry is decided:
            has_begun = True
            yield entry
        elif has_begun or (decided is None and entry.at >= wanted.at):
            if entry.what == Phase.STOPPING:
                return
            yield entry
            if entry.what in _OVER:
                return


def _first(entries: Iterable[HistoryEntryView], words: Iterable[str]) -> float | None:
    wanted = frozenset(words)
    return next((each.at for each in entries if each.what in wanted), None)
