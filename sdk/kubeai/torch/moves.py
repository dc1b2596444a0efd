"""Decides which rows of sharded tensors go from which rank to which when the number of ranks changes.

Nothing here needs torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Sequence

if TYPE_CHECKING:
    from .decisions import RoundHost


@dataclass(frozen=True)
class RowMove:
    """The rows `first` to `end` - 1 of a tensor, which one rank has and another one needs; both may be the same.

    Attributes:
        source: The rank that has them.
        target: The rank that needs them.
        first: Their first row, counted in the whole tensor.
        end: The row after their last one.
    """

    source: int
    target: int
    first: int
    end: int


def rows_of(rows: int, parts: int, part: int) -> tuple[int, int]:
    """Return the first row of a part and the row after its last one, as `torch.chunk` divides a tensor.

    The last parts are shorter, or empty.
    """
    each = -(-rows // parts)
    return min(rows, each * part), min(rows, each * (part + 1))


def moves(rows: int, holders: Sequence[int], takers: Sequence[int]) -> list[RowMove]:
    """Return where each row of a tensor goes. Each part of each taker comes from as few ranks as hold rows of it.

    Args:
        rows: Of the whole tensor.
        holders: The ranks that have its parts, in the order of the parts.
        takers: The ranks that are to have the new parts, in the order of these.
    """
    found = []
    held_rows = -(-rows // len(holders))
    for part, target in enumerate(takers):
        first, end = rows_of(rows, len(takers), part)
        if first == end:
            continue
        for held in range(first // held_rows, (end - 1) // held_rows + 1):
            has_first, has_end = rows_of(rows, len(holders), held)
            found.append(RowMove(holders[held], target, max(first, has_first), min(end, has_end)))
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
        form: Stands for the names, shapes and types of the tensors.
    """

    step: int
    parts: int
    part: int
    form: int


NO_PART = PartClaim(-1, 0, 0, 0)


def holders_of(claims: Sequence[PartClaim]) -> list[int] | None:
    """Return the ranks that have the parts of one state, in the order of the parts; None if a part is missing.

    Of two whole states it is the one with more finished steps. A rank without a part of it gets one.

    Args:
        claims: Of each rank.
    """
    newest = max(claims, key=lambda claim: claim.step)
    if newest.step < 0:
        return None
    holders = {
        claim.part: rank
        for rank, claim in enumerate(claims)
        if (claim.step, claim.parts, claim.form) == (newest.step, newest.parts, newest.form)
    }
    parts = range(newest.parts)
    return [holders[part] for part in parts] if all(part in holders for part in parts) else None
