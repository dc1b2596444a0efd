"""Hands the state of a sharded training over from the memory of one round's ranks to that of the next round's.

Tensors are divided by rows, as with FSDP2, or each has an owner, as in a ZeroRedundancyOptimizer, or each rank has all.

It takes two stages, and either is empty for most changes:

1. `give`, in the group of the old round: those that stay divide the state among themselves. Those that leave give.
2. `spread`, in the group of the new round: all of its ranks divide it. Those that join only take.

What each rank sends is what `moves` says. A rank has its old part until it has all of the new one.
"""

from __future__ import annotations

import os
import time
from dataclasses import astuple
from typing import Any, Iterable, Mapping, NamedTuple, Sequence

import torch  # type: ignore[import-not-found,unused-ignore]
import torch.distributed as dist  # type: ignore[import-not-found,unused-ignore]
from kubeai.elastic import api, elastic_agent
from kubeai.elastic.integrations.random_state import (
    encoded_random_state,
    seed_anew,
    set_encoded_random_state,
)
from kubeai.elastic.integrations.torch import broadcast, device_type

from .decisions import NotFormed
from .messages import RankMessage, flat, gathered, least, pass_bytes, transfer
from .moves import EVERY_PART, NO_PART, PartClaim, RowMove, WholeState, heirs, moves, newest_whole, stayers
from .parts import (
    CarriedPart,
    DividedState,
    DividedTensor,
    DTensor,
    Path,
    Shard,
    divided_tensors,
    free_memory,
    mapped,
    on_cpu,
    reassigned,
)
from .stderr import say_way

_PROBES = 1 << 20, 16 << 20
"""How many bytes tell how fast ranks send: the second number is for states for which the first says too little."""
_RESERVE = 2
"""By what the probe says, a transfer takes at most one half of its time; the other half is for what that misses."""
_SPREAD = 2
"""On a GPU, so much memory must be free for each part that a rank holds: itself, and the rows that come of it."""
_PROBE_SECONDS = 10.0
"""A rank that has not sent its probe by then is lost."""
_OF_A_PARAMETER = 3
"""So many names lead to the state of one parameter: the optimizer, "state", and the parameter's number."""
_DIVIDES_OTHERWISE = "`build` divides it in another way in another round"


def prepared(states: Mapping[str, Any], number: int, seconds: float, *, divides_alike: bool) -> DividedState | None:
    """Return the state of this rank if all ranks can hand theirs over in this time; None in every rank otherwise.

    Called in every rank. The first time that it is None for a reason, stderr says why.

    Args:
        states: By name, what has a `state_dict`.
        number: Of the round.
        seconds: How long the hand-over may take.
        divides_alike: Whether `build` has divided the state in the same way in each round that this rank has seen.
    """
    if seconds <= 0:
        return None
    if DTensor is None:
        say_way("this torch has no public DTensor")
        return None
    divided = DividedState(states, number)
    reason = _DIVIDES_OTHERWISE if not divides_alike else divided.reason_against() or divided.reason_of_memory()
    if reason is None and not elastic_agent.can_defer_sigterm():
        reason = "the loop is not in the main thread, so SIGTERM would end a rank that still gives its part"
    can, lowest, highest = least(int(reason is None), divided.form, -divided.form)
    if not can or lowest != -highest:
        say_way(reason or "a rank cannot give its part")
        return None
    if not _fits(divided.size, seconds):
        say_way("there is not enough time for its size")
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
    staying, rank = stayers(following), dist.get_rank()
    rest = _rest_of_all({rank: divided.rest}, range(world), divided.zeros)
    parts = heirs(following)
    after = reassigned(rest, lambda _, owner: owner if owner in (None, EVERY_PART) else parts[owner])
    rows = _redivided((rest, after), {rank: divided.rows}, range(world), staying, end, room={})
    pairs = [(source, staying[source % len(staying)]) for source in range(world)]
    random = pass_bytes(pairs, {rank: encoded_random_state()}, end)
    least(1)  # nobody carries a part of which another rank could not give or get its own
    if rank not in staying:
        return None
    claim = PartClaim(step, len(staying), staying.index(rank), divided.form)
    return CarriedPart(claim, rows, after, random)


def whole(carried: Sequence[CarriedPart], saved: int) -> WholeState | None:
    """Return the newest state of which the ranks of a new group carry all parts.

    Called in every rank. None if there is none, or the newest checkpoint has more finished steps.

    Args:
        carried: What this rank carries, its own part of a state before the copies that it keeps for others.
        saved: The number of finished steps in the newest checkpoint that this rank knows of.
    """
    most, newest_saved = (-each for each in least(-len(carried), -saved))
    if not most:
        return None
    claims = [each.claim for each in carried] + [NO_PART] * (most - len(carried))
    told = gathered(*(number for claim in claims for number in astuple(claim)))
    size = len(astuple(NO_PART))
    found = newest_whole([[PartClaim(*each[at : at + size]) for at in range(0, len(each), size)] for each in told])
    return None if found is None or found.step < newest_saved else found


def has_memory(carried: Sequence[CarriedPart], found: WholeState) -> bool:
    """Return whether all ranks have the memory to divide a state that is carried. Called in every rank.

    Only a GPU may lack it: copies are in main memory, and go there and to other ranks at once.
    """
    if device_type() != "cuda":
        return True
    held = _held(carried, found).values()
    parts = [sum(rows.numel() * rows.element_size() for rows in each.rows.values()) for each in held]
    is_enough = free_memory() >= _SPREAD * sum(parts) + max(parts, default=0)
    if not is_enough:
        say_way("the GPU has not the memory for parts of other ranks")
    return bool(least(int(is_enough))[0])


def spread(states: Mapping[str, Any], carried: Sequence[CarriedPart], found: WholeState, seconds: float) -> bool:
    """Divide a state that is carried among all ranks, and load it. Called in every rank of the new round.

    False in every rank, and nothing is loaded, if `build` has not divided the state by rows over one mesh of all ranks.

    Args:
        states: What was built for the new round, by name.
        carried: What this rank carries. It remains whole if this fails.
        found: The state, from `whole`.
        seconds: How long it may take.

    Raises:
        NotFormed: A rank was lost, or time is up.
    """
    rank, world, end = dist.get_rank(), dist.get_world_size(), time.monotonic() + seconds
    held = _held(carried, found)
    built = DividedState(states)
    reason = built.reason_against()
    if not least(int(reason is None))[0]:
        say_way(_DIVIDES_OTHERWISE if reason is None else f"{_DIVIDES_OTHERWISE}: {reason}")
        return False
    mesh = next((each.device_mesh for each in built.tensors.values() if isinstance(each, DTensor)), None)
    before = _rest_of_all({part: each.rest for part, each in held.items()}, found.holders, built.zeros)
    owners = _owners(built)

    def owner_of(path: Path, owner: int | None) -> int | None:
        named = path[:_OF_A_PARAMETER]
        return owners.get(named) if owner is None else owners[named]

    rest = reassigned(before, owner_of)
    parts = {part: each.rows for part, each in held.items()}
    # Parameters go straight into what was built, so that no rank has them a third time.
    may_take = all(each.file is None for each in held.values())
    rows = _redivided((before, rest), parts, found.holders, range(world), end, room=built.rows, may_take=may_take)
    pairs = [(found.holders[target % len(found.holders)], target) for target in range(world)]
    states_of_ranks = {number: state for each in held.values() for number, state in each.random.items()}
    random = pass_bytes(pairs, states_of_ranks, end)
    least(1)  # as in `give`

    def whole_tensor(path: Path, tensor: DividedTensor) -> Any:
        if tensor.owner is not None:
            return rows[path]  # all of it, or nothing, which a ZeroRedundancyOptimizer leaves out
        return DTensor.from_local(
            rows[path], mesh, (Shard(0),), run_check=False, shape=torch.Size(tensor.shape), stride=tensor.stride
        )

    tree = mapped(rest, whole_tensor, lambda _, leaf: isinstance(leaf, DividedTensor))
    for name, each in states.items():
        each.load_state_dict(tree[name])
    if random.get(rank):
        set_encoded_random_state(random[rank])
    else:
        seed_anew(rank)
    return True


def _held(carried: Sequence[CarriedPart], found: WholeState) -> dict[int, CarriedPart]:
    """Return by its number each part of a state of which this rank is the holder."""
    return {
        part: each
        for part, holder in enumerate(found.holders)
        for each in carried
        if holder == dist.get_rank() and each.claim == found.claim_of(part)
    }


def _rest_of_all(rests: Mapping[int, Any], holders: Sequence[int], zeros: Iterable[str]) -> Any:
    """Return what is whole in each rank, as part 0 has it, with the states that each part owns. Called in every rank.

    Args:
        rests: Those of the parts of which this rank is the holder, by the number of the part.
        holders: The ranks that have the parts, in the order of the parts.
        zeros: The names of the optimizers of which each part has the states of some parameters.
    """
    found = broadcast(on_cpu(rests.get(0)), holders[0])
    for name in zeros:
        for part, holder in list(enumerate(holders))[1:]:
            states = rests[part][name]["state"] if part in rests else None
            found[name]["state"].update(broadcast(on_cpu(states), holder))
    return found


def _owners(built: DividedState) -> dict[Path, int]:
    """Return by its path which rank owns each parameter's state in what was built. Called in every rank.

    With EVERY_PART, by theirs, for tensors that each rank has whole.
    """
    tensors = divided_tensors(built.rest)
    found = {path: EVERY_PART for path, tensor in tensors.items() if tensor.owner == EVERY_PART}
    for name in built.zeros:
        owned, groups = (built.rest[name][key] for key in ("state", "param_groups"))
        numbers = range(sum(len(group["params"]) for group in groups))
        told = gathered(*(int(number in owned) for number in numbers))
        found.update({(name, "state", number): [each[number] for each in told].index(1) for number in numbers})
    return found


def _redivided(  # noqa: PLR0913 - what is divided, from whom to whom, until when and where it goes
    rests: tuple[Any, Any],
    held: Mapping[int, Mapping[Path, torch.Tensor]],
    holders: Sequence[int],
    takers: Sequence[int],
    end: float,
    *,
    room: Mapping[Path, torch.Tensor],
    may_take: bool = True,
) -> dict[Path, torch.Tensor]:
    """Return this rank's rows of each divided tensor as one of `takers`; none for another rank.

    Called in every rank, with the rows of each part of which it is the holder, by the number of the part. `rests`
    describe the state before and after. `room` has tensors that may be filled. With `may_take`, a part that remains as
    it is may be the same memory afterwards.
    """
    rank, device, plan = dist.get_rank(), device_type(), _Plan(holders, takers)
    messages: list[RankMessage] = []
    found = {}
    before, after = map(divided_tensors, rests)
    for path, tensor in before.items():
        has = {part: tensor.rows_of(len(holders), part) for part, rows in held.items() if path in rows}
        sources = {part: _Rows(held[part][path].to(device), span[0]) for part, span in has.items()}
        needs = after[path].rows_of(len(takers), takers.index(rank)) if rank in takers else None
        same = [part for part, span in has.items() if span == needs and may_take]
        target = None
        if same:
            found[path] = sources[same[0]].tensor
        elif needs is not None:
            shape, there = (needs[1] - needs[0], *tensor.shape[1:]), room.get(path)
            if there is None or (there.shape, there.dtype) != (shape, tensor.dtype):
                there = torch.empty(shape, dtype=tensor.dtype, device=device)
            found[path] = there
            target = _Rows(found[path], needs[0])
        messages += _messages(plan.of(tensor.shape[0], tensor.owner, after[path].owner), sources, target)
    transfer(messages, end)
    return found


class _Plan:
    """The moves of this rank, which are the same for all tensors of so many rows and of the same owners."""

    def __init__(self, holders: Sequence[int], takers: Sequence[int]) -> None:
        self._ranks = holders, takers
        self._known: dict[tuple[int, int | None, int | None], Sequence[RowMove]] = {}

    def of(self, rows: int, before: int | None, after: int | None) -> Sequence[RowMove]:
        key = rows, before, after
        if key not in self._known:
            rank = dist.get_rank()
            found = moves(rows, *self._ranks, before, after)
            self._known[key] = [move for move in found if rank in (move.source, move.target)]
        return self._known[key]


class _Rows(NamedTuple):
    """Rows of a tensor from `first` on."""

    tensor: torch.Tensor
    first: int

    def of(self, move: RowMove) -> torch.Tensor:
        return self.tensor[move.first - self.first : move.end - self.first]


def _messages(plan: Iterable[RowMove], held: Mapping[int, _Rows], taken: _Rows | None) -> list[RankMessage]:
    """Return this rank's messages for one tensor, and copy what it has itself.

    Args:
        plan: The moves of this rank.
        held: The rows that it has, by the number of their part.
        taken: Those that it gets; None if it gets none but those that it has.
    """
    rank = dist.get_rank()
    found: list[RankMessage] = []
    for move in plan:
        if move.source == rank:
            rows = held[move.part].of(move)
            if move.target != rank:
                found.append(RankMessage(dist.isend, flat(rows), move.target))
            elif taken is not None:
                taken.of(move).copy_(rows)
        elif taken is not None:
            found.append(RankMessage(dist.irecv, flat(taken.of(move)), move.source))
    return found


def _fits(size: int, seconds: float) -> bool:
    """Return whether each rank sends its part, of `size` bytes in this one, in time; the same in every rank.

    All ranks of a host send to another one at once, as they do when it leaves.

    Raises NotFormed if a rank does not answer.
    """
    rank, world = dist.get_rank(), dist.get_world_size()
    on_a_host = -least(-processes_here())[0]
    shift, limit = on_a_host % world or 1, min(seconds, _seconds_left())
    for probe, larger in zip(_PROBES, (*_PROBES[1:], None)):
        sent = torch.zeros(probe, dtype=torch.uint8, device=device_type())
        received = torch.empty_like(sent)
        begun = time.monotonic()
        if world > 1:
            others = (
                RankMessage(dist.isend, sent, (rank + shift) % world),
                RankMessage(dist.irecv, received, (rank - shift) % world),
            )
            transfer(others, begun + _PROBE_SECONDS)
        pace = (time.monotonic() - begun) / probe
        fits = _RESERVE * size * pace <= limit
        may_ask_again = larger is not None and larger * pace <= limit
        all_fit, all_may = least(int(fits), int(may_ask_again))
        if all_fit or not all_may:
            return bool(all_fit)
    return False


def processes_here() -> int:
    """Return how many ranks this host has."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def _seconds_left() -> float:
    left = api.seconds_left()
    return float("inf") if left is None else left
