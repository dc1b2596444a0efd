"""Decides which rows of divided tensors go from which rank to which when the number of ranks changes.

Nothing here needs torch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Iterable, Sequence, Tuple

if TYPE_CHECKING:
    from .decisions import RoundHost

EVERY_PART = -1
"""As the owner of a tensor: each part has all of its rows."""


@dataclass(frozen=True)
class RowMove:
    """The rows `first` to `end` - 1 of a tensor, which one rank has and another one needs; both may be the same.

    Attributes:
        source: The rank that has them.
        target: The rank that needs them.
        first: Their first row, counted in the whole tensor.
        end: The row after their last one.
        part: The number of the old part that they are taken from.
    """

    source: int
    target: int
    first: int
    end: int
    part: int


def rows_of(rows: int, parts: int, part: int, owner: int | None = None) -> tuple[int, int]:
    """Return the first row of a part and the row after its last one.

    Args:
        rows: Of the whole tensor.
        parts: Among how many the tensor is divided.
        part: The number of the part.
        owner: The part that has all rows, or EVERY_PART. None: they are divided as `torch.chunk` does it, where the
            last parts are shorter, or empty.
    """
    if owner is not None:
        return 0, rows if owner in (part, EVERY_PART) else 0
    each = -(-rows // parts)
    return min(rows, each * part), min(rows, each * (part + 1))


def moves(
    rows: int, holders: Sequence[int], takers: Sequence[int], before: int | None = None, after: int | None = None
) -> list[RowMove]:
    """Return where each row of a tensor goes. Each part of each taker comes from as few ranks as hold rows of it.

    Args:
        rows: Of the whole tensor.
        holders: The ranks that have its parts, in the order of the parts. One rank may have several.
        takers: The ranks that are to have the new parts, in the order of these.
        before: The owner among the old parts, as of `rows_of`.
        after: That among the new ones. EVERY_PART stays EVERY_PART, and so may become what is divided.
    """
    found = []
    held_rows = -(-rows // len(holders))
    for part, target in enumerate(takers):
        first, end = rows_of(rows, len(takers), part, after)
        if first == end:
            continue
        sources: Iterable[int] = range(first // held_rows, (end - 1) // held_rows + 1)
        if before == EVERY_PART:
            sources = [holders.index(target) if target in holders else part % len(holders)]
        elif before is not None:
            sources = [before]
        for held in sources:
            has_first, has_end = rows_of(rows, len(holders), held, before)
            found.append(RowMove(holders[held], target, max(first, has_first), min(end, has_end), held))
    return found


def next_ranks(before: Sequence[RoundHost], after: Sequence[RoundHost]) -> list[int | None]:
    """Return for each rank of a round which one it is in the next round, None if it is not part of that one."""
    bases, base = {}, 0
    for each in after:
        bases[each] = base
        base += each.processes
    return [
        None if each not in bases else bases[each] + local_rank
        for each in before
        for local_rank in range(each.processes)
    ]


def stayers(following: Sequence[int | None]) -> list[int]:
    """Return the ranks of a round that are part of the next one, in the order of their ranks there.

    Args:
        following: For each rank its next one, or None.
    """
    places = [(after, rank) for rank, after in enumerate(following) if after is not None]
    return [rank for _, rank in sorted(places)]


def heirs(following: Sequence[int | None]) -> list[int]:
    """Return for each rank of a round which new part gets the whole tensors that it owns.

    A rank that stays keeps them. Those of the ranks that leave go to different parts as long as there are enough.

    Args:
        following: For each rank its next one, or None.
    """
    staying = stayers(following)
    leaving = [rank for rank, after in enumerate(following) if after is None]
    kept = {rank: part for part, rank in enumerate(staying)}
    given = {rank: place % len(staying) for place, rank in enumerate(leaving)}
    return [part for _, part in sorted({**kept, **given}.items())]


def is_room_for(following: Sequence[int | None]) -> bool:
    """Return whether those that stay can take all of the state, with the memory and the time for two parts each.

    Args:
        following: For each rank its next one, or None.
    """
    return 2 * len(stayers(following)) >= len(following)


@dataclass(frozen=True)
class PartClaim:
    """Says which part a rank has of a state that is divided among ranks.

    Attributes:
        step: The number of finished steps; below 0 if the rank has nothing.
        parts: Among how many ranks the state is divided.
        part: The number of this rank's part.
        form: Stands for the round, and for the names, shapes and types of the tensors.
    """

    step: int
    parts: int
    part: int
    form: int


NO_PART = PartClaim(-1, 0, 0, 0)


@dataclass(frozen=True)
class WholeState:
    """A state of which some rank has each part.

    Attributes:
        step: The number of finished steps.
        form: As of PartClaim.
        holders: The ranks that have the parts, in the order of the parts.
    """

    step: int
    form: int
    holders: Tuple[int, ...]  # noqa: UP006 - Python 3.8

    def claim_of(self, part: int) -> PartClaim:
        """Return the claim of whoever has a part of this state."""
        return PartClaim(self.step, len(self.holders), part, self.form)


def newest_whole(claims: Sequence[Sequence[PartClaim]]) -> WholeState | None:
    """Return the state with the most finished steps of which the ranks together have all parts; None without one.

    Args:
        claims: What each rank has, its own part of a state before the copies that it keeps for others. They have
            equally many.
    """
    parts: dict[PartClaim, dict[int, int]] = {}
    for of_ranks in zip(*claims):  # so that each part comes from its own rank if that is there
        for rank, claim in enumerate(of_ranks):
            parts.setdefault(replace(claim, part=0), {}).setdefault(claim.part, rank)
    whole = [
        WholeState(state.step, state.form, tuple(rank for _, rank in sorted(holders.items())))
        for state, holders in parts.items()
        if state.step >= 0 and sorted(holders) == list(range(state.parts))
    ]
    return max(whole, key=lambda state: state.step, default=None)


def keepers(processes: Sequence[int]) -> list[int]:
    """Return for each rank the one that keeps its copy: on the next host, and on the first one for the last host.

    Args:
        processes: The number of ranks of each host, in the order of the ranks.
    """
    bases = [sum(processes[:host]) for host in range(len(processes))]
    following = [*range(1, len(processes)), 0]
    return [
        bases[following[host]] + local_rank % processes[following[host]]
        for host, count in enumerate(processes)
        for local_rank in range(count)
    ]
