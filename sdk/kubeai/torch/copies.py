"""Keeps a copy of each rank's part of a sharded state in main memory, and another one on a rank of the next host.

When a rank is lost without notice, those that remain have all parts of the newest copy: each its own one, and one of
them that of the lost rank. Training goes on from there, and needs no storage.

A step is held up only while the rank copies its part to main memory. A thread sends that to the other host in a process
group of its own, and agrees with all ranks that the copy is whole, and after which step the next one is taken.

With files for the memory, a part is offered to processes that start later as soon as it is complete. All ranks agree
after that, and only then is the memory of the copy before used again. So at each moment the hosts have all parts of one
copy, also if all processes are killed.
"""

from __future__ import annotations

import copy
import threading
import time
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Mapping, Sequence, Tuple

import torch  # type: ignore[import-not-found,unused-ignore]
import torch.distributed as dist  # type: ignore[import-not-found,unused-ignore]
from kubeai.elastic.integrations.encoding import decoded, encoded
from kubeai.elastic.integrations.random_state import encoded_random_state

from .connections import Connections
from .decisions import NotFormed
from .messages import RankMessage, flat, least, pass_bytes, transfer
from .moves import PartClaim, keepers
from .part_memory import part_with_room, publish
from .parts import CarriedPart, DividedState, DTensor, dealt, divided_tensors, on_cpu
from .stderr import say, say_once

if TYPE_CHECKING:
    from .copy_files import CopyFile, CopyFiles
    from .settings import PeerCopies

_SENDING_SECONDS = 600.0
"""How long the sending of one copy may take. A rank that is lost ends it sooner."""
_NEVER = 1 << 40
"""The number of a step that does not come."""

Parts = Tuple[CarriedPart, ...]


def formed_ring(
    plan: PeerCopies | None, number: int, processes: Sequence[int], seconds: float, kept: KeptFiles
) -> CopyRing | None:
    """Return what takes copies in a round; None if there is no place for them. Called in every rank.

    With one host there is a place only if copies outlive the processes.

    Args:
        plan: How often copies are taken; None for never.
        number: Stands for the round in the form of the state.
        processes: The number of ranks of each host, in the order of the ranks.
        seconds: How long a collective of the copies may take.
        kept: Where copies outlive the processes.
    """
    if plan is None:
        return None
    if DTensor is None:
        say_once("there are no copies of the state: this torch has no public DTensor")
        return None
    is_alone = len(processes) <= 1 and plan.directory is None
    return None if is_alone else CopyRing(plan, number, processes, seconds, kept)


@dataclass(frozen=True)
class KeptFiles:
    """The files in which this process has copies.

    Attributes:
        files: Where new ones are made; None if copies are in this process's memory.
        before: Those of the newest whole state from before the round. The first copy of the round takes their place.
    """

    files: CopyFiles | None = None
    before: Tuple[CopyFile, ...] = ()  # noqa: UP006 - Python 3.8


class CopyRing:
    """The ranks of one round, each of which keeps the copies of ranks of the host before its own.

    Args:
        plan: How often copies are taken.
        number: Stands for the round in the form of the state.
        processes: The number of ranks of each host, in the order of the ranks.
        seconds: How long a collective of the copies may take.
        kept: Where copies outlive the processes.
    """

    def __init__(
        self, plan: PeerCopies, number: int, processes: Sequence[int], seconds: float, kept: KeptFiles
    ) -> None:
        self.plan = plan
        self.kept = kept
        self.rank = dist.get_rank()
        self.keepers = keepers(processes)
        self.connections = Connections()
        least(1)  # torch waits in the store for a rank that is lost, where nothing interrupts it
        self.group = dist.new_group(backend="gloo", timeout=timedelta(seconds=seconds))
        self.connections.note()
        self._number = number
        self._seconds = seconds
        self._sending: _Sending | None = None
        self._whole: Parts = ()
        self._spare: Parts = ()
        self._next = 0
        self._taken: tuple[int, float] | None = None
        self._is_off = self._is_told = False

    def take(self, step: int, states: Mapping[str, Any]) -> None:
        """Take a copy if it is time for one. Called in every rank between two steps.

        Args:
            step: The number of finished steps.
            states: By name, what has a `state_dict`.
        """
        self._finish_sending(step)
        if self._is_off or self._sending is not None or step < self._next:
            return
        begun, step_seconds = time.monotonic(), None
        # Before memory is used again, a copy takes longer, and the first step of a round may, too.
        if self._taken is not None and self._spare:
            before, ended = self._taken
            step_seconds = (begun - ended) / (step - before)
        own: CarriedPart | None = None
        try:
            divided = DividedState(states, self._number)
            reason = divided.reason_against()
            if reason is None:
                own = _copied(divided, step, self._spare[0] if self._spare else None, self.kept.files)
        except Exception as error:  # noqa: BLE001 - such as no memory, which only costs the copies
            reason = f"{type(error).__name__}: {error}"
        self._taken = step, time.monotonic()
        taken = _Taken(step, own, reason, self._taken[1] - begun, step_seconds)
        self._sending = _Sending(self, taken, self._spare[1:])
        try:
            self._sending.start()
        except RuntimeError as error:  # no further thread: the others wait in vain, and go on without copies
            self._give_up(error)

    def end(self) -> Parts:
        """End what is under way, and return the parts that this rank has, its own ones before those of others.

        No other rank waits for this one, and the group can be destroyed: with gloo that waits for what is pending.
        """
        self._is_off = True
        newest: Parts = ()
        if self._sending is not None:
            self.connections.shut_down()
            if self._sending.ident is not None:
                self._sending.join(self._seconds)
            newest = self._sending.parts
        found = [*newest, *self._whole]
        return tuple(sorted(found, key=lambda each: each.claim.part != self.rank))

    def _finish_sending(self, step: int) -> None:
        """Take over what was sent. If a rank may already know when the next copy is taken, wait for that."""
        if self._sending is None or self._is_off or not self._sending.must_end_at(step):
            return
        self._sending.join()
        if self._sending.failure is not None:
            self._give_up(self._sending.failure)
            return
        self._spare, self._whole, self._next = self._whole, self._sending.parts, self._sending.next_step
        self._tell(self._sending)
        self._sending = None

    def _give_up(self, error: Exception) -> None:
        """Take no further copies. What was sent remains: this may be the first sign that a rank is lost."""
        self._is_off = True
        self.connections.shut_down()
        say_once(f"no further copies of the state in this round: {error}")

    def _tell(self, sent: _Sending) -> None:
        """Say once in each round, in its first rank, what the copies cost."""
        if self._is_told or sent.taken.step_seconds is None or self.rank != 0:
            return
        self._is_told = True
        size = sum(rows.numel() * rows.element_size() for each in sent.parts for rows in each.rows.values())
        say(
            f"a copy of the state each {sent.steps} steps holds one up for {1000 * sent.taken.holding:.0f} ms and is "
            f"sent in {sent.seconds:.2f} s; copies take {2 * size / 1e6:.0f} MB of this process"
        )


@dataclass(frozen=True)
class _Taken:
    """A rank's part as it was after a step.

    Attributes:
        step: The number of finished steps.
        own: The part; None if the rank could not copy it.
        reason: Why that is so, or why another rank cannot use it.
        holding: For how long taking it held the training up, in seconds.
        step_seconds: How long a step takes; None if it is not known yet.
    """

    step: int
    own: CarriedPart | None
    reason: str | None
    holding: float
    step_seconds: float | None


class _Sending(threading.Thread):
    """Sends one copy, and receives those that this rank keeps.

    Attributes:
        parts: This rank's part, and those that it has received so far as a whole.
        next_step: After how many finished steps the next copy is taken, once all ranks know it.
        steps: How many steps there are until then.
        seconds: How long the sending took.
        failure: Why the copy is not whole in each rank.
    """

    def __init__(self, ring: CopyRing, taken: _Taken, spare: Parts) -> None:
        super().__init__(name="kubeai-copies", daemon=True)
        self.taken = taken
        self.parts: Parts = () if taken.own is None else (taken.own,)
        self.next_step = self.steps = 0
        self.seconds = 0.0
        self.failure: Exception | None = None
        self._ring, self._spare = ring, spare
        self._lock = threading.Lock()
        self._step, self._agreeing_at = taken.step, _NEVER

    def must_end_at(self, step: int) -> bool:
        """Return whether the next step has to wait for its end, which then comes at once.

        Args:
            step: The number of finished steps.
        """
        with self._lock:
            self._step = step
            return step >= self._agreeing_at or not self.is_alive()

    def run(self) -> None:
        """Send, receive and agree."""
        try:
            self._exchange()
            self._agree()
            for file in self._ring.kept.before:  # all ranks have a whole copy of this round by now
                file.remove()
        except Exception as error:  # noqa: BLE001 - a lost rank, or whatever it is: the copies end, not the training
            self.failure = error
            self._ring.connections.shut_down()  # so that no other rank waits for this one

    def _exchange(self) -> None:
        begun, group, rank = time.monotonic(), self._ring.group, self._ring.rank
        own, reason = self.taken.own, self.taken.reason
        form = 0 if own is None else own.claim.form
        can, lowest, highest = least(int(reason is None), form, -form, group=group)
        if own is None or not can or lowest != -highest:
            raise NotFormed(reason or "a rank cannot copy its part")
        content = bytes(encoded((own.rest, own.random)))
        publish(own, content)
        end = begun + _SENDING_SECONDS
        pairs = [(source, target) for source, target in enumerate(self._ring.keepers) if source != target]
        told = pass_bytes(pairs, {rank: content}, end, group)
        kept = [self._room_for(source, told[source]) for source, target in pairs if target == rank]
        sent = _in_order(own) if pairs else []
        transfer(
            [
                *(RankMessage(dist.isend, flat(rows), self._ring.keepers[rank]) for rows in sent),
                *(RankMessage(dist.irecv, flat(rows), each.claim.part) for each in kept for rows in _in_order(each)),
            ],
            end,
            group,
        )
        for each in kept:
            publish(each, told[each.claim.part])
        self.parts = (own, *kept)
        self.seconds = time.monotonic() - begun

    def _agree(self) -> None:
        """Agree on the next copy: no rank has passed that step before all know it."""
        steps = self._ring.plan.steps_between(self.taken.holding, self.seconds, self.taken.step_seconds)
        self.steps = -least(-steps, group=self._ring.group)[0]
        with self._lock:
            self._agreeing_at = self._step + 1
        self.next_step = -least(-max(self.taken.step + self.steps, self._agreeing_at), group=self._ring.group)[0]

    def _room_for(self, source: int, content: bytes) -> CarriedPart:
        """Return where the part of another rank goes: in memory that an older copy had, if it is of the same size."""
        rest, random = decoded(content)
        before = next((each for each in self._spare if each.claim.part == source), None)
        claim = replace(self.parts[0].claim, part=source)
        return part_with_room(claim, rest, random, before, self._ring.kept.files)


def _copied(divided: DividedState, step: int, before: CarriedPart | None, files: CopyFiles | None) -> CarriedPart:
    rank = dist.get_rank()
    claim = PartClaim(step, dist.get_world_size(), rank, divided.form)
    rest, rows = dealt(divided.rest, divided.rows, claim)
    random = {rank: encoded_random_state()}
    is_pinned = any(own.is_cuda for own in rows.values())
    part = part_with_room(claim, copy.deepcopy(on_cpu(rest)), random, before, files, is_pinned=is_pinned)
    for path, own in rows.items():
        part.rows[path].copy_(own)
    return part


def _in_order(part: CarriedPart) -> list[torch.Tensor]:
    """Return the rows of a part that are not empty, in an order that is the same in every rank."""
    found = (part.rows[path] for path in divided_tensors(part.rest))
    return [rows for rows in found if rows.numel()]
