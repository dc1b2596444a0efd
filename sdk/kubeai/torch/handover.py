"""Hands the state of a sharded training over from the memory of one round's ranks to that of the next round's.

It takes two stages, and either is empty for most changes:

1. `give`, in the group of the old round: those that stay divide the state among themselves. Those that leave give.
2. `spread`, in the group of the new round: all of its ranks divide it. Those that join only take.

What each rank sends is what `moves` says. A rank has its old part until it has all of the new one.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import sys
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Callable, Iterable, Mapping, NamedTuple, Sequence, Tuple

import torch  # type: ignore[import-not-found,unused-ignore]
import torch.distributed as dist  # type: ignore[import-not-found,unused-ignore]
from kubeai.elastic import api, elastic_agent
from kubeai.elastic.integrations.random_state import random_state, set_random_state
from kubeai.elastic.integrations.torch import broadcast, device_type

from .decisions import NotFormed
from .moves import NO_PART, PartClaim, RowMove, holders_of, moves, rows_of, stayers

try:
    from torch.distributed.tensor import DTensor, Shard  # type: ignore[import-not-found,unused-ignore]
except ImportError:  # before torch 2.5
    DTensor = Shard = None  # type: ignore[assignment,misc,unused-ignore]

_Path = Tuple[object, ...]
_Message = Tuple[Callable[..., Any], torch.Tensor, int]
"""`isend` or `irecv`, what is sent or where it goes, and the other rank."""
_PROBES = 1 << 20, 16 << 20
"""How many bytes tell how fast ranks send: the second number is for states for which the first says too little."""
_RESERVE = 2
"""By what the probe says, a transfer takes at most one half of its time; the other half is for what that misses."""
_COPIES = 2.5
"""On a GPU, so much memory must be free, in parts: the new one, and the one that `build` makes."""
_PROBE_SECONDS = 10.0
"""A rank that has not sent its probe by then is lost."""
_DIVIDES_OTHERWISE = "`build` divides it in another way in another round"
_LENGTH_BYTES = 8
_AT_ONCE = timedelta(milliseconds=1)

_said: set[str] = set()
"""Why state goes through checkpoints, as far as stderr says it already."""


class DividedTensor(NamedTuple):
    """Stands for a tensor that is divided among the ranks, in the description of the state of one of them."""

    shape: Tuple[int, ...]  # noqa: UP006 - Python 3.8
    stride: Tuple[int, ...]  # noqa: UP006 - Python 3.8
    dtype: torch.dtype


class DividedState:
    """The state of this rank: `rows`, its part of the tensors that are divided, by path; and `rest`, whole in each.

    In `rest`, a DividedTensor is in the place of each of these tensors. `form` stands for all of them.

    Args:
        states: By name, what has a `state_dict`.
    """

    def __init__(self, states: Mapping[str, Any]) -> None:
        self.tensors: dict[_Path, Any] = {}
        tree = {name: each.state_dict() for name, each in states.items()}
        self.rest = _mapped(tree, self._take, lambda _, leaf: isinstance(leaf, DTensor))
        self.rows = {path: leaf.to_local().detach() for path, leaf in self.tensors.items()}
        told = repr(_divided(self.rest)).encode()
        self.form = int.from_bytes(hashlib.sha256(told).digest()[:7], "big")

    @property
    def size(self) -> int:
        """How many bytes of divided tensors this rank has."""
        return sum(rows.numel() * rows.element_size() for rows in self.rows.values())

    def reason_against(self) -> str | None:
        """Return why this state cannot be handed over by rows, None if it can."""
        if not self.rows:
            return "none of its tensors is divided among the ranks"
        rank, world, device = dist.get_rank(), dist.get_world_size(), device_type()
        for path, tensor in self.tensors.items():
            name, mesh, local = ".".join(map(str, path)), tensor.device_mesh, self.rows[path]
            if mesh.ndim != 1 or mesh.mesh.tolist() != list(range(world)):
                return f"the mesh of {name} is not one dimension of all ranks"
            if tuple(tensor.placements) != (Shard(0),):
                return f"{name} is not divided by rows alone"
            first, end = rows_of(tensor.shape[0], world, rank)
            if local.shape != (end - first, *tensor.shape[1:]) or not local.is_contiguous():
                return f"{name} is not divided evenly"
            if type(local) is not torch.Tensor:
                return f"{name} has parts of {type(local).__name__}"
            if local.device.type != device:
                return f"{name} is on {local.device.type}, and the process group takes {device}"
        kinds = [type(leaf).__name__ for leaf in _leaves(self.rest) if _is_unknown(leaf)]
        return f"it has a {kinds[0]}" if kinds else None

    def reason_of_memory(self) -> str | None:
        """Return why this rank cannot have a part twice, None if it can."""
        if device_type() != "cuda":
            return None
        free = torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
        return "the GPU has not the memory for two parts" if free < _COPIES * self.size else None

    def _take(self, path: _Path, leaf: Any) -> DividedTensor:
        self.tensors[path] = leaf
        return DividedTensor(tuple(leaf.shape), tuple(leaf.stride()), leaf.dtype)


@dataclass(frozen=True)
class CarriedPart:
    """Holds the part of the state that a rank takes out of a round, in memory.

    Attributes:
        claim: Which part of which state.
        rows: Its rows of the divided tensors, by path.
        rest: As of DividedState.
        random: The state of the random number generators, encoded; empty for a rank that keeps its own.
    """

    claim: PartClaim
    rows: Mapping[_Path, torch.Tensor]
    rest: Any
    random: bytes


def prepared(states: Mapping[str, Any], seconds: float, *, divides_alike: bool) -> DividedState | None:
    """Return the state of this rank if all ranks can hand theirs over in this time; None in every rank otherwise.

    Called in every rank. The first time that it is None for a reason, stderr says why.

    Args:
        states: By name, what has a `state_dict`.
        seconds: How long the hand-over may take.
        divides_alike: Whether `build` has divided the state in the same way in each round that this rank has seen.
    """
    if seconds <= 0:
        return None
    if DTensor is None:
        say_once("this torch has no public DTensor")
        return None
    divided = DividedState(states)
    reason = _DIVIDES_OTHERWISE if not divides_alike else divided.reason_against() or divided.reason_of_memory()
    if reason is None and not elastic_agent.can_defer_sigterm():
        reason = "the loop is not in the main thread, so SIGTERM would end a rank that still gives its part"
    can, least, most = _least(int(reason is None), divided.form, -divided.form)
    if not can or least != -most:
        say_once(reason or "a rank cannot give its part")
        return None
    if not _fits(divided.size, seconds):
        say_once("there is not enough time for its size")
        return None
    return divided


def give(divided: DividedState, step: int, following: Sequence[int | None], seconds: float) -> CarriedPart | None:
    """Divide the state among the ranks that stay; returns what this one carries into the next round.

    Called in every rank of the old round. None in a rank that leaves, whose part the others have then.

    Args:
        divided: The state of this rank.
        step: The number of finished steps.
        following: For each rank the one that it is in the next round, None if it leaves.
        seconds: How long it may take.

    Raises:
        NotFormed: A rank was lost, or time is up. The state is lost.
    """
    world, end = dist.get_world_size(), time.monotonic() + seconds
    if len(following) != world:
        raise NotFormed(f"the next round was told for {len(following)} ranks instead of {world}")
    staying = stayers(following)
    rows = _redivided(divided.rest, divided.rows, range(world), staying, end)
    rest = broadcast(on_cpu(divided.rest), 0)
    random = _pass_random(staying, end)
    _least(1)  # nobody carries a part of which another rank could not give or get its own
    if dist.get_rank() not in staying:
        return None
    claim = PartClaim(step, len(staying), staying.index(dist.get_rank()), divided.form)
    return CarriedPart(claim, rows, rest, random)


def whole(carried: CarriedPart | None) -> tuple[int, list[int]] | None:
    """Return the step of the state that the ranks of a new group carry, and its holders; None if a part is missing.

    Called in every rank.
    """
    own = NO_PART if carried is None else carried.claim
    claims = [PartClaim(*each) for each in _gathered(own.step, own.parts, own.part, own.form)]
    holders = holders_of(claims)
    return None if holders is None else (claims[holders[0]].step, holders)


def spread(states: Mapping[str, Any], carried: CarriedPart | None, holders: Sequence[int], seconds: float) -> bool:
    """Divide the state that is carried among all ranks, and load it. Called in every rank of the new round.

    False in every rank, and nothing is loaded, if `build` has not divided the state by rows over one mesh of all ranks.

    Args:
        states: What was built for the new round, by name.
        carried: This rank's part. It remains whole if this fails.
        holders: The ranks that have the parts.
        seconds: How long it may take.

    Raises:
        NotFormed: A rank was lost, or time is up.
    """
    world, end = dist.get_world_size(), time.monotonic() + seconds
    own = carried if carried is not None and dist.get_rank() in holders else None
    built = DividedState(states)
    reason = built.reason_against()
    if not _least(int(reason is None))[0]:
        say_once(_DIVIDES_OTHERWISE if reason is None else f"{_DIVIDES_OTHERWISE}: {reason}")
        return False
    mesh = next(iter(built.tensors.values())).device_mesh
    rest = None if own is None else own.rest
    if len(holders) < world:
        rest = broadcast(rest, holders[0])
    rows = _redivided(rest, {} if own is None else own.rows, holders, range(world), end)
    _least(1)  # as in `give`

    def whole_tensor(path: _Path, tensor: DividedTensor) -> Any:
        return DTensor.from_local(
            rows[path], mesh, (Shard(0),), run_check=False, shape=torch.Size(tensor.shape), stride=tensor.stride
        )

    tree = _mapped(rest, whole_tensor, lambda _, leaf: isinstance(leaf, DividedTensor))
    for name, each in states.items():
        each.load_state_dict(tree[name])
    if own is not None and own.random:
        set_random_state(torch.load(io.BytesIO(own.random)))
    return True


def _redivided(
    rest: Any, held: Mapping[_Path, torch.Tensor], holders: Sequence[int], takers: Sequence[int], end: float
) -> dict[_Path, torch.Tensor]:
    """Return this rank's rows of each divided tensor as one of `takers`; none for another rank.

    Called in every rank, with the rows that it holds as one of `holders`.
    """
    rank, plan = dist.get_rank(), _Plan(holders, takers)
    messages: list[_Message] = []
    found = {}
    for path, tensor in _divided(rest).items():
        count = tensor.shape[0]
        has, needs = (
            rows_of(count, len(ranks), ranks.index(rank)) if rank in ranks else None for ranks in (holders, takers)
        )
        source = None if has is None else _Rows(held[path], has[0])
        target = None
        if needs is not None and needs == has:
            found[path] = held[path]
        elif needs is not None:
            found[path] = torch.empty(
                (needs[1] - needs[0], *tensor.shape[1:]), dtype=tensor.dtype, device=device_type()
            )
            target = _Rows(found[path], needs[0])
        messages += _messages(plan.of(count), source, target)
    _transfer(messages, end)
    return found


def _mapped(
    tree: Any, change: Callable[[_Path, Any], Any], applies: Callable[[_Path, Any], bool], path: _Path = ()
) -> Any:
    """Return a copy of nested dictionaries, lists and tuples in which the leaves that `applies` says are changed."""
    if isinstance(tree, dict):
        return {key: _mapped(each, change, applies, (*path, key)) for key, each in tree.items()}
    if isinstance(tree, list):
        return [_mapped(each, change, applies, (*path, index)) for index, each in enumerate(tree)]
    if type(tree) is tuple:
        return tuple(_mapped(each, change, applies, (*path, index)) for index, each in enumerate(tree))
    return change(path, tree) if applies(path, tree) else tree


def _leaves(tree: Any) -> list[Any]:
    found: list[Any] = []
    _mapped(tree, lambda _, leaf: found.append(leaf), lambda *_: True)
    return found


def _divided(rest: Any) -> dict[_Path, DividedTensor]:
    """Return the divided tensors by path, in an order that is the same in every rank."""
    found: dict[_Path, DividedTensor] = {}
    _mapped(rest, found.__setitem__, lambda _, leaf: isinstance(leaf, DividedTensor))
    return {path: found[path] for path in sorted(found, key=repr)}


def _is_unknown(leaf: Any) -> bool:
    """Return whether a leaf may have tensors in it that nobody sees: a named tuple, or a kind of tensor of its own."""
    if isinstance(leaf, tuple):
        return not isinstance(leaf, (DividedTensor, torch.Size))
    return isinstance(leaf, torch.Tensor) and type(leaf) not in (torch.Tensor, torch.nn.Parameter)


def on_cpu(tree: Any) -> Any:
    """Return nested dictionaries, lists and tuples with their tensors in main memory."""
    return _mapped(tree, lambda _, leaf: leaf.detach().cpu(), lambda _, leaf: isinstance(leaf, torch.Tensor))


class _Plan:
    """The moves of this rank, which are the same for all tensors of so many rows."""

    def __init__(self, holders: Sequence[int], takers: Sequence[int]) -> None:
        self._ranks = holders, takers
        self._known: dict[int, Sequence[RowMove]] = {}

    def of(self, rows: int) -> Sequence[RowMove]:
        if rows not in self._known:
            rank = dist.get_rank()
            found = moves(rows, *self._ranks)
            self._known[rows] = [move for move in found if rank in (move.source, move.target)]
        return self._known[rows]


class _Rows(NamedTuple):
    """Rows of a tensor from `first` on."""

    tensor: torch.Tensor
    first: int

    def of(self, move: RowMove) -> torch.Tensor:
        return self.tensor[move.first - self.first : move.end - self.first]


def _messages(plan: Iterable[RowMove], held: _Rows | None, taken: _Rows | None) -> list[_Message]:
    """Return this rank's messages for one tensor, and copy what it has itself.

    Two ranks send the messages between them in the order of the tensors, so these need no names.

    Args:
        plan: The moves of this rank.
        held: The rows that it has; None for none.
        taken: Those that it gets; None if it gets none but those that it has.
    """
    rank = dist.get_rank()
    found: list[_Message] = []
    for move in plan:
        if move.source == rank and held is not None:
            if move.target != rank:
                found.append((dist.isend, _flat(held.of(move)), move.target))
            elif taken is not None:
                taken.of(move).copy_(held.of(move))
        elif taken is not None:
            found.append((dist.irecv, _flat(taken.of(move)), move.source))
    return found


def _flat(rows: torch.Tensor) -> torch.Tensor:
    """Return the bytes of contiguous rows, so that any type is sent as it is."""
    return rows.view(-1).view(torch.uint8)


def _transfer(messages: Sequence[_Message], end: float) -> None:
    """Send and receive. Raises NotFormed if a rank is gone, or at `end`.

    gloo waits for ever for what is pending when a group is destroyed. A wait that times out ends all that is pending,
    so after a failure the rest is waited for like this.
    """
    if not messages:
        return
    works: list[Any] = []
    failure: RuntimeError | None = None
    try:
        works += dist.batch_isend_irecv([dist.P2POp(*message) for message in messages])
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


def _pass_random(staying: Sequence[int], end: float) -> bytes:
    """Return the state of random number generators that this rank continues with, as after a checkpoint: by rank.

    A rank of the next round has that of the rank with its number.
    """
    buffer = io.BytesIO()
    torch.save(random_state(), buffer)
    content = buffer.getvalue()
    longest = -_least(-len(content))[0]
    encoded = len(content).to_bytes(_LENGTH_BYTES, "big") + content.ljust(longest, b"\0")
    held = torch.frombuffer(bytearray(encoded), dtype=torch.uint8).to(device_type())[None]
    taken = torch.empty_like(held)
    plan = [RowMove(source, target, 0, 1) for source, target in enumerate(staying)]
    own = [move for move in plan if dist.get_rank() in (move.source, move.target)]
    _transfer(_messages(own, _Rows(held, 0), _Rows(taken, 0)), end)
    if dist.get_rank() not in staying:
        return b""
    data = bytes(taken[0].tolist())
    return data[_LENGTH_BYTES:][: int.from_bytes(data[:_LENGTH_BYTES], "big")]


def _fits(size: int, seconds: float) -> bool:
    """Return whether each rank sends its part, of `size` bytes in this one, in time; the same in every rank.

    All ranks of a host send to another one at once, as they do when it leaves.

    Raises NotFormed if a rank does not answer.
    """
    rank, world = dist.get_rank(), dist.get_world_size()
    on_a_host = -_least(-int(os.environ.get("LOCAL_WORLD_SIZE", "1")))[0]
    shift, limit = on_a_host % world or 1, min(seconds, _seconds_left())
    for probe, larger in zip(_PROBES, (*_PROBES[1:], None)):
        sent = torch.zeros(probe, dtype=torch.uint8, device=device_type())
        received = torch.empty_like(sent)
        begun = time.monotonic()
        if world > 1:
            others = (dist.isend, sent, (rank + shift) % world), (dist.irecv, received, (rank - shift) % world)
            _transfer(others, begun + _PROBE_SECONDS)
        pace = (time.monotonic() - begun) / probe
        fits = _RESERVE * size * pace <= limit
        may_ask_again = larger is not None and larger * pace <= limit
        all_fit, all_may = _least(int(fits), int(may_ask_again))
        if all_fit or not all_may:
            return bool(all_fit)
    return False


def _seconds_left() -> float:
    left = api.seconds_left()
    return float("inf") if left is None else left


def _least(*numbers: int) -> list[int]:
    """Return the least of each number of all ranks."""
    told = torch.tensor(numbers, dtype=torch.int64, device=device_type())
    dist.all_reduce(told, dist.ReduceOp.MIN)
    return [int(each) for each in told.tolist()]


def _gathered(*numbers: int) -> list[list[int]]:
    """Return the numbers of all ranks."""
    own = torch.tensor(numbers, dtype=torch.int64, device=device_type())
    told = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(told, own)
    return [each.tolist() for each in told]


def say_once(reason: str) -> None:
    """Say on stderr why state goes through a checkpoint, unless it was said before."""
    if reason not in _said:
        _said.add(reason)
        with contextlib.suppress(OSError):
            sys.stderr.write(f"kubeai: at a change the state goes through a checkpoint: {reason}\n")
