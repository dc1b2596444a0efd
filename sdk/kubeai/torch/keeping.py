"""Keeps a divided state in the memory of hosts that stay while the job is stopped, if a checkpoint would be too slow.

The ranks of hosts that leave give their parts to the others, as at a change of hosts. Each of these puts its new part
into the state keeper of its own host. A note beside the checkpoints says where the parts are. The ranks of the next run
get them from there, and divide the state as after any change.
"""

from __future__ import annotations

import hashlib
import math
import os
import struct
import time
from dataclasses import astuple
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any, Callable, Iterator

import torch  # type: ignore[import-not-found,unused-ignore]
import torch.distributed as dist  # type: ignore[import-not-found,unused-ignore]
from kubeai.elastic import api
from kubeai.elastic.integrations.encoding import decoded, encoded
from kubeai.elastic.integrations.torch import on_rank_zero

from .handover import give, prepared, processes_here
from .messages import done_by_all, flat, gathered, least, pass_bytes
from .moves import PartClaim, is_room_for, stayers
from .parts import CarriedPart, dealt, divided_tensors
from .state_keeper import (
    KeeperClient,
    KeeperFailed,
    KeeperRoom,
    KeptPart,
    KeptState,
    new_name,
    read_note,
    write_note,
)
from .stderr import say

if TYPE_CHECKING:
    from typing import Mapping, Sequence


_MAGIC = b"kubeai state 1\n"
_HEAD = struct.Struct(">5q")
"""The size of `rest`, and the numbers of the claim."""
_PIECE = 16 << 20
_LONGEST_SECONDS = 600.0
"""How long keeping a state may take where no deadline is known."""
_MOST_REST = 1 << 32
_RESERVE = 2.0
"""A checkpoint is too slow if it took more than half of the time that is left when it was saved last."""
_ROOM = 1.1
"""By what a part may be larger than the others."""


def is_needed(saving: float | None) -> bool:
    """Return whether all ranks stop now, and one of them has not the time for a checkpoint. Called in every rank.

    Args:
        saving: How long the last checkpoint took, in seconds; None if none was saved yet: then it may take any time.
    """
    left = api.seconds_left()
    is_slow = left is not None and (saving is None or saving * _RESERVE > left)
    stops, fast = least(int(api.stop_is_agreed()), int(not is_slow))
    return bool(stops and not fast)


def keep(
    states: Mapping[str, Any], number: int, step: int, directory: str | os.PathLike[str], *, divides_alike: bool
) -> bool:
    """Put the state into the memory of hosts that stay. Called in every rank of a run that stops.

    False in every rank if that cannot be, and stderr says why.

    Args:
        states: By name, what has a `state_dict`.
        number: Stands for the round in the form of the state.
        step: The number of finished steps.
        directory: Of the checkpoints, on a file system that all hosts share.
        divides_alike: As of `prepared`.

    Raises:
        NotFormed: A rank was lost, or time is up.
    """
    left = api.seconds_left()
    # The same in all ranks, also if one has not heard of the deadline yet.
    seconds = least(int(1000 * (_LONGEST_SECONDS if left is None else min(_LONGEST_SECONDS, left))))[0] / 1000
    end = time.monotonic() + seconds
    divided = prepared(states, number, _LONGEST_SECONDS, divides_alike=divides_alike)
    if divided is None:
        return False
    keeper = KeeperClient.of_this_host(os.environ)
    room = done_by_all(lambda: _room(keeper))
    told = gathered(divided.share, int(not api.host_leaves() and room.size > 0), room.size // processes_here())
    following = _following([bool(stays) for _, stays, _ in told])
    staying = stayers(following)
    if not staying or not is_room_for(following):
        say("the state is not kept in memory: fewer than half of the ranks are on hosts that stay and have a keeper")
        _report_if_short(keeper, room, divided.share)
        return False
    needed = _ROOM * sum(size for size, _, _ in told) / len(staying)
    if any(stays and free < needed for _, stays, free in told):
        say(f"the state is not kept in memory: a state keeper has no room for parts of {needed / 1e6:.0f} MB")
        _report_if_short(keeper, room, needed)
        return False
    part = give(divided, step, following, seconds)
    name = on_rank_zero(new_name)
    seconds_kept = room.kept_for(api.max_wait())
    digest = done_by_all(lambda: b"" if part is None or keeper is None else _put(keeper, name, part, seconds_kept, end))
    is_kept = bool(least(int(part is None or bool(digest)))[0])
    if is_kept:
        own = {} if part is None else {part.claim.part: f"{digest.hex()} {keeper.address if keeper else ''}".encode()}
        found = pass_bytes([(source, 0) for source in staying], own, end)
        on_rank_zero(lambda: _write_note(FilePath(directory), step, name, found))
    elif digest and keeper is not None:  # one that has not answered would take the time of the checkpoint
        keeper.delete(name)
    return is_kept


def kept_parts(directory: str | os.PathLike[str], saved: int) -> list[CarriedPart]:
    """Return the parts of a kept state that this rank gets from state keepers. Called in every rank of a new run.

    None if the newest checkpoint is as new. A part that cannot be had costs a line on stderr, and the state.

    Args:
        directory: Of the checkpoints.
        saved: The number of finished steps in the newest one, below 0 if there is none.
    """
    kept: KeptState | None = on_rank_zero(lambda: read_note(FilePath(directory)))
    if kept is None or kept.step <= saved:
        return []
    numbers = range(dist.get_rank(), len(kept.parts), dist.get_world_size())
    found = done_by_all(lambda: [_got(kept, part) for part in numbers])
    return [part for part in found if part is not None]


def _write_note(directory: FilePath, step: int, name: str, found: Mapping[int, bytes]) -> None:
    """Write where the parts are, each of which is told by its digest and its state keeper."""
    told = [found[number].decode().split(" ") for number in sorted(found)]
    write_note(directory, KeptState(step, name, tuple(KeptPart(keeper, digest) for digest, keeper in told)))


def _room(keeper: KeeperClient | None) -> KeeperRoom:
    """Return what a state keeper takes. Nothing, after a line, if it is not there."""
    if keeper is None:
        say("this host has no state keeper: KUBEAI_KEEPER is not set")
        return KeeperRoom(0, 0.0)
    try:
        room = keeper.room()
    except KeeperFailed as error:
        say(f"the state cannot be kept on this host: {error}")
        return KeeperRoom(0, 0.0)
    if not room.kept_for(api.max_wait()):
        say("the state is not kept on this host: the job does not wait to be resumed")
        return KeeperRoom(0, 0.0)
    return room


def _report_if_short(keeper: KeeperClient | None, room: KeeperRoom, needed: float) -> None:
    """Let the operators of this host's keeper see that it is too small for parts of that size."""
    size = math.ceil(needed * processes_here())
    if keeper is not None and not api.host_leaves() and room.size < size:
        keeper.report_need(size)


def _following(stay: Sequence[bool]) -> list[int | None]:
    """Return for each rank which part it has afterwards, None for those that do not stay."""
    places = iter(range(len(stay)))
    return [next(places) if stays else None for stays in stay]


def _put(keeper: KeeperClient, name: str, part: CarriedPart, seconds: float, end: float) -> bytes:
    """Have a part kept, and return its digest; b"" after a line if it is not kept."""
    description, own = dealt(part.rest, part.rows, part.claim)
    rest = bytes(encoded((description, part.random)))
    head = _MAGIC + _HEAD.pack(len(rest), *astuple(part.claim)) + rest
    rows = [own[path] for path in divided_tensors(description)]
    size = len(head) + sum(each.numel() * each.element_size() for each in rows)
    try:
        keeper.put(name, part.claim.part, _pieces(head, rows), size=size, seconds=seconds, end=end)
    except KeeperFailed as error:
        say(f"the state is not kept in memory: {error}")
        return b""
    return hashlib.sha256(head).digest()


def _pieces(head: bytes, rows: Sequence[torch.Tensor]) -> Iterator[memoryview]:
    yield memoryview(head)
    memory = bytearray(_PIECE)
    room = torch.frombuffer(memory, dtype=torch.uint8)
    for each in rows:
        for piece in flat(each.detach()).split(_PIECE) if each.numel() else ():
            room[: len(piece)].copy_(piece)
            yield memoryview(memory)[: len(piece)]


def _got(kept: KeptState, part: int) -> CarriedPart | None:
    """Return a part from its state keeper; None, after a line, if it is not there, or not what was put there."""
    where = kept.parts[part]
    try:
        with KeeperClient(where.keeper).get(kept.name, part) as fill:
            return _read(fill, where.digest)
    except KeeperFailed as error:
        say(f"the state after step {kept.step} was kept in memory, and part {part} of it cannot be had: {error}")
        return None


def _read(fill: Callable[[memoryview], None], digest: str) -> CarriedPart:
    head = _filled(fill, len(_MAGIC) + _HEAD.size)
    size, *numbers = _HEAD.unpack_from(head, len(_MAGIC))
    if not head.startswith(_MAGIC) or not 0 <= size <= _MOST_REST:
        raise KeeperFailed("it is malformed")
    content = _filled(fill, size)
    if hashlib.sha256(head + content).hexdigest() != digest:
        raise KeeperFailed("it is not what was put there")
    rest, random = decoded(content)  # by its digest, a rank of this job has encoded it
    claim, rows = PartClaim(*numbers), {}
    for path, tensor in divided_tensors(rest).items():
        first, end = tensor.rows_of(claim.parts, claim.part)
        rows[path] = torch.empty((end - first, *tensor.shape[1:]), dtype=tensor.dtype)
        _fill_rows(fill, rows[path])
    return CarriedPart(claim, rows, rest, random)


def _filled(fill: Callable[[memoryview], None], size: int) -> bytearray:
    memory = bytearray(size)
    fill(memoryview(memory))
    return memory


def _fill_rows(fill: Callable[[memoryview], None], rows: torch.Tensor) -> None:
    if not math.prod(rows.shape):
        return
    memory = bytearray(min(_PIECE, rows.numel() * rows.element_size()))
    room = torch.frombuffer(memory, dtype=torch.uint8)
    for piece in flat(rows).split(_PIECE):
        fill(memoryview(memory)[: len(piece)])
        piece.copy_(room[: len(piece)])
