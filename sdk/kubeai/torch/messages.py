"""Sends bytes and numbers from rank to rank, within a time, and fails in every rank that waits for a lost one."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from typing import Any, Callable, Mapping, NamedTuple, Sequence, TypeVar

import torch  # type: ignore[import-not-found,unused-ignore]
import torch.distributed as dist  # type: ignore[import-not-found,unused-ignore]
from kubeai.elastic.integrations.torch import device_type

from .decisions import NotFormed

T = TypeVar("T")

_LENGTH_BYTES = 8
_LOOK_SECONDS = 0.2
_AT_ONCE = timedelta(milliseconds=1)


class RankMessage(NamedTuple):
    """A message of this rank.

    Attributes:
        post: `isend` or `irecv`.
        content: What is sent, or where it goes; bytes.
        other: The other rank.
    """

    post: Callable[..., Any]
    content: torch.Tensor
    other: int


def flat(rows: torch.Tensor) -> torch.Tensor:
    """Return the bytes of contiguous rows, so that any type is sent as it is."""
    return rows.view(-1).view(torch.uint8)


def transfer(messages: Sequence[RankMessage], end: float, group: Any = None) -> None:
    """Send and receive. Raises NotFormed if a rank is gone, or at `end`.

    gloo waits for ever for what is pending when a group is destroyed. A wait that times out ends all that is pending,
    so after a failure the rest is waited for like this.

    Args:
        messages: Of this rank. Two ranks send those between them in one order, so they need no names.
        end: By the monotonic clock.
        group: The process group; the default one if None.
    """
    if not messages:
        return
    works: list[Any] = []
    failure: RuntimeError | None = None
    try:
        works += dist.batch_isend_irecv([dist.P2POp(*message, group=group) for message in messages])
    except RuntimeError as error:
        failure = error
    for work in works:
        left = _AT_ONCE if failure else max(timedelta(seconds=end - time.monotonic()), _AT_ONCE)
        try:
            work.wait(left)
        except RuntimeError as error:
            failure = failure or error
    if failure is not None:
        raise NotFormed(f"the state was not handed over: {failure}") from failure


def pass_bytes(
    pairs: Sequence[tuple[int, int]], contents: Mapping[int, bytes], end: float, group: Any = None
) -> dict[int, bytes]:
    """Send bytes from rank to rank. Called in every rank.

    Returns by number what is sent to this rank; b"" for a number of which the source has none.

    Args:
        pairs: The source and the target of each number.
        contents: What this rank has, by number.
        end: By the monotonic clock.
        group: The process group; the default one if None.
    """
    rank, device = dist.get_rank(), device_type(group)
    longest = -least(-max(map(len, contents.values()), default=0), group=group)[0]
    received = {number: contents.get(number, b"") for number, pair in enumerate(pairs) if pair == (rank, rank)}
    messages, taken = [], []
    for number, (source, target) in enumerate(pairs):
        if source == target or rank not in (source, target):
            continue
        own = contents.get(number, b"") if rank == source else b""
        encoded = bytearray(len(own).to_bytes(_LENGTH_BYTES, "big") + own.ljust(longest, b"\0"))
        content = torch.frombuffer(encoded, dtype=torch.uint8).to(device)
        if rank == source:
            messages.append(RankMessage(dist.isend, content, target))
        else:
            messages.append(RankMessage(dist.irecv, content, source))
            taken.append((number, encoded, content))
    transfer(messages, end, group)
    for number, encoded, content in taken:
        torch.frombuffer(encoded, dtype=torch.uint8).copy_(content)
        length = int.from_bytes(encoded[:_LENGTH_BYTES], "big")
        received[number] = bytes(encoded[_LENGTH_BYTES : _LENGTH_BYTES + length])
    return received


def least(*numbers: int, group: Any = None) -> list[int]:
    """Return the least of each number of all ranks."""
    told = torch.tensor(numbers, dtype=torch.int64, device=device_type(group))
    dist.all_reduce(told, dist.ReduceOp.MIN, group=group)
    return [int(each) for each in told.tolist()]


def done_by_all(action: Callable[[], T]) -> T:
    """Carry out an action that may take longer than a collective waits. Called in every rank.

    Returns its result once all ranks have carried out theirs. It runs in a thread, and the ranks ask each other
    meanwhile. So one that is lost is noticed at once, and one that is frozen after the time of one collective.

    Raises:
        RuntimeError: A rank was lost. The action of this one goes on in the background, and nobody gets its result.
        Exception: That of the action.
    """
    found: list[T] = []
    failed: list[Exception] = []

    def run() -> None:
        try:
            found.append(action())
        except Exception as error:  # noqa: BLE001 - the caller gets it
            failed.append(error)

    thread = threading.Thread(target=run, name="kubeai-keeper", daemon=True)
    thread.start()
    while not least(int(not thread.is_alive()))[0]:
        thread.join(_LOOK_SECONDS)
    if failed:
        raise failed[0]
    return found[0]


def gathered(*numbers: int) -> list[list[int]]:
    """Return the numbers of all ranks."""
    own = torch.tensor(numbers, dtype=torch.int64, device=device_type())
    told = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(told, own)
    return [each.tolist() for each in told]
