"""How members form a round among themselves while the supervisor is away, as a pure decision.

The lowest reachable member of the last round leads. It forms the next one of the members that wait, and the others
follow. Members whose workers have lost a rank and wait for a round in process do the same among themselves, and restart
nothing. Either happens only with more than half of the members that may still be alive, so that two parts of a divided
network never train side by side.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Sequence

from .rounds import Round

if TYPE_CHECKING:
    from .rounds import RoundMember


@dataclass(frozen=True)
class Answer:
    """What a member of the last round has answered.

    Attributes:
        reached: It has answered.
        gone: Its host says that nobody listens there any more. A member that is neither may be cut off.
        parked: The supervisor has taken it off the last round: it neither leads nor follows.
        waits: It waits for a newer round.
        stranded: Its workers do, and enter it in process.
        supervised: It has a stream to the supervisor.
        wanted: The newest round it has heard of.
        known: The round that it is in.
    """

    reached: bool = False
    gone: bool = False
    parked: bool = False
    waits: bool = False
    stranded: bool = False
    supervised: bool = False
    wanted: int = 0
    known: Round | None = None


def next_round(last: Round, own: int, answers: Sequence[Answer], *, least: int, patient: bool = True) -> Round | None:
    """Return the round that a waiting or stranded member enters: one that another has formed, or one that it leads.

    Args:
        last: The newest round whose members are known.
        own: The index of this member in it.
        answers: Of each member of it, with its own answer at `own`.
        least: The smallest number of members of a round.
        patient: Wait also for members that still run, and were asked to wait.

    Returns:
        None while there is no such round, and where the supervisor decides.
    """
    if any(answer.supervised for answer in answers):
        return None
    member = last.members[own].member
    formed = [one.known for one in answers if _is_newer(one.known, last, member)]
    if formed:
        return max((one for one in formed if one is not None), key=lambda one: one.number)
    reached = [index for index, answer in enumerate(answers) if answer.reached and not answer.parked]
    waiting = [index for index in reached if answers[index].waits]
    stranded = [index for index in reached if answers[index].stranded]
    in_process = answers[own].stranded
    together, awaited = (stranded, sorted((*waiting, *stranded))) if in_process else (waiting, waiting)
    if own != min(stranded if in_process else reached, default=None) or (patient and awaited != reached):
        return None
    if len(together) < least or not _is_majority(together, answers):
        return None
    number = max(last.number, *(answer.wanted for answer in answers)) + 1
    return Round(number, tuple(_members(last, together)), in_process=in_process)


def _is_newer(known: Round | None, last: Round, member: str) -> bool:
    """Return whether a round is a newer one of this member that can be entered."""
    return known is not None and known.number > last.number and known.index_of(member) is not None and bool(known.store)


def _is_majority(waiting: Sequence[int], answers: Sequence[Answer]) -> bool:
    """Return whether these are more than half of the members that may train, or half of them with the lowest."""
    present = [index for index, answer in enumerate(answers) if not (answer.gone or answer.parked)]
    return 2 * len(waiting) > len(present) or (2 * len(waiting) == len(present) and present[0] in waiting)


def _members(last: Round, indices: Sequence[int]) -> Sequence[RoundMember]:
    return [last.members[index] for index in indices]
