"""The state that a training process takes from one round to the next: whole in each rank, or sharded."""

from __future__ import annotations

import contextlib
import copy
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Generic, Mapping, Sequence, TypeVar, Union

import torch  # type: ignore[import-not-found,unused-ignore]
import torch.distributed as dist  # type: ignore[import-not-found,unused-ignore]
from kubeai.elastic.integrations.random_state import random_state, set_random_state
from kubeai.elastic.integrations.torch import ShardedCheckpoints, broadcast, newest_step
from kubeai.elastic.loop import KEPT
from torch.nn.parallel import DistributedDataParallel  # type: ignore[import-not-found,unused-ignore]

from .copies import KeptFiles, formed_ring
from .copy_files import CopyFiles, job_key
from .decisions import NO_STATE, processes_of_hosts, source_of
from .handover import give, has_memory, prepared, spread, whole
from .keeping import is_needed, keep, kept_parts
from .messages import gathered, least
from .part_memory import parts_of
from .parts import on_cpu
from .ranks import RoundRanks
from .state_keeper import forget
from .stderr import say

if TYPE_CHECKING:
    from .copies import CopyRing
    from .decisions import FormedRound
    from .parts import CarriedPart, DividedState
    from .settings import Limits, PeerCopies

T = TypeVar("T")

_ORIGIN_BYTES = 7
"""So many fit into the signed integer that ranks compare."""
_PLACE = ("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "1")

_MOST_LATE = 2
"""So often in a row may parts need more time than they have before a checkpoint is taken: the first time, it may be
because of a rank that is frozen, and the next round is without it.
"""

_MOST_OF_IT = 0.9
"""Of the time: ranks that have begun a little later than the first one fail together with it, before theirs is up."""

States = Mapping[str, Any]
"""By name, whatever has `state_dict` and `load_state_dict`: modules, optimizers, a scheduler, a scaler, an average."""


class Replicated(Generic[T]):
    """State that is whole in each rank, as with DistributedDataParallel.

    Ranks that join get it from one that has it. Nothing is read from a checkpoint unless the whole job starts, so not
    even a loss without notice repeats a step.

    Args:
        states: Modules not wrapped, on the device they train on, their optimizers, and whatever else changes in a step.
            `step` of an optimizer uses no collective. A data loader is no part of it: its position is the step.
        save: Saves a checkpoint after so many finished steps. Called in every rank; rank 0 writes.
        load: Loads the newest checkpoint and returns its number of finished steps, 0 without one. Called in every rank.
        build: Returns what depends on the ranks, and is made anew in each round, such as the wrapped model and the
            iterator of a loader. By default, DistributedDataParallel of the only module.

    Raises:
        ValueError: There is no optimizer, or no `build` and not one module.
    """

    def __init__(
        self,
        states: States,
        save: Callable[[int], object],
        load: Callable[[], int],
        *,
        build: Callable[[RoundRanks], T] | None = None,
    ) -> None:
        self.optimizers = _optimizers(states)
        self._modules = _modules(states)
        if build is None and len(self._modules) != 1:
            raise ValueError(f"there are {len(self._modules)} modules, so `build` has to say what is wrapped")
        self._states = dict(states)
        self._others = _others(states)
        self._save = save
        self._load = load
        self._build = build or (lambda _: DistributedDataParallel(self._modules[0]))
        self._before: tuple[list[torch.Tensor], dict[str, Any], dict[str, Any]] = [], {}, {}
        self._is_applied = False
        for optimizer in self.optimizers:
            optimizer.register_step_post_hook(self._note_applied)

    def enter(self, formed: FormedRound, limits: Limits) -> tuple[int, T]:  # noqa: ARG002 - as of `Sharded`
        """Make all ranks of a new process group equal; returns the number of finished steps and what was built.

        All load a checkpoint if no rank has a state. Otherwise the rank with the most steps gives its own to all.

        Args:
            formed: The round of the group.
            limits: How long processes wait.
        """
        step, source = max(formed.steps), source_of(formed.steps)
        if step == NO_STATE:
            step = self._load()
        elif source is not None:
            self._broadcast(source)
        return step, self._build(RoundRanks.present(step, formed.number))

    def leave(self) -> None:
        """Do nothing: all of it goes to the next round."""

    def end(self, step: int, *, is_over: bool) -> None:
        """Do nothing: nothing is under way."""

    def prepare(self, step: int, seconds: float) -> DividedState | None:  # noqa: ARG002 - as of `Sharded`
        """Do nothing before the next round: each rank has everything in memory."""
        return None

    def begin_step(self, step: int) -> None:  # noqa: ARG002 - as of `Sharded`
        """Copy what a step changes before its optimizer does: buffers, such as running means, and random numbers."""
        buffers = [buffer.clone() for buffer in self._buffers()]
        others = {name: copy.deepcopy(each.state_dict()) for name, each in self._others.items()}
        self._before = buffers, others, random_state()
        self._is_applied = False

    def undo_step(self) -> bool:
        """Return to the beginning of the step. False: an optimizer has changed parameters, which have no copy."""
        buffers, others, random = self._before
        with torch.no_grad():
            for buffer, before in zip(self._buffers(), buffers):
                buffer.copy_(before)
        for module in self._modules:
            module.zero_grad(set_to_none=True)
        for name, each in self._others.items():
            each.load_state_dict(others[name])
            if isinstance(each, torch.amp.GradScaler):
                with contextlib.suppress(AssertionError):  # it has scaled nothing yet
                    each.update(each.get_scale())  # forgets for which optimizers it has unscaled gradients
        set_random_state(random)
        return not self._is_applied

    def save(self, step: int) -> None:
        """Save a checkpoint. Called in every rank."""
        self._save(step)

    def _note_applied(self, *_: object) -> None:
        self._is_applied = True

    def _buffers(self) -> list[torch.Tensor]:
        return [buffer for module in self._modules for buffer in module.buffers()]

    def _broadcast(self, source: int) -> None:
        with torch.no_grad():
            parameters = [parameter for module in self._modules for parameter in module.parameters()]
            # All at once, so that no tensor waits until the one before it has reached every rank.
            under_way = [dist.broadcast(each, source, async_op=True) for each in (*parameters, *self._buffers())]
            for work in under_way:
                work.wait()
        holders = {name: each for name, each in self._states.items() if not isinstance(each, torch.nn.Module)}
        is_source = dist.get_rank() == source
        states = {name: on_cpu(each.state_dict()) for name, each in holders.items()} if is_source else {}
        states = broadcast(states, source)
        if not is_source:
            for name, each in holders.items():
                each.load_state_dict(states[name])


class Sharded(Generic[T]):
    """State of which each rank has a part.

    As with `fully_shard` (FSDP2), also with a mesh of several dimensions, or with DistributedDataParallel and
    ZeroRedundancyOptimizer, where each rank has the whole model and the optimizer's state of some parameters.

    The parts depend on the number of ranks, so each round builds all of it anew. At an announced change the ranks hand
    their parts over from memory to memory, and no step is repeated. Where they cannot, as with a mesh of several
    dimensions, they save a checkpoint and load it in the next round. A loss without notice takes parts with it: the job
    goes back to the newest copy of `copies`, or else to its newest checkpoint, still without a restart.

    Args:
        directory: Of the checkpoints, on a file system that all hosts share.
        build: Called in each round. Returns the states by name, among them one wrapped module and its optimizers, and
            whatever else the loop needs. A scheduler's state and the like are saved as those of rank 0.
        keep: How many checkpoints remain.
        copies: How often each rank's part is copied to another host; None for never.
        in_memory_at_stop: At a stop for which a checkpoint would be too slow, keep the state in the memory of hosts
            that stay, in their state keepers, until the job resumes or has waited too long.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        build: Callable[[RoundRanks], tuple[States, T]],
        *,
        keep: int = 2,
        copies: PeerCopies | None = None,
        in_memory_at_stop: bool = False,
    ) -> None:
        self.optimizers: list[torch.optim.Optimizer] = []
        self._directory = directory
        self._build = build
        self._keep = keep
        self._copies = copies
        self._in_memory_at_stop = in_memory_at_stop
        self._saving: float | None = None
        self._ring: CopyRing | None = None
        self._checkpoints: ShardedCheckpoints | None = None
        self._states: States = {}
        self._carried: list[CarriedPart] = []
        self._saved = NO_STATE
        self._number = self._origin = self._late = 0
        self._divides_alike = True
        self._files: CopyFiles | None = None
        self._is_new = True
        self._keepers_are_slow = False

    def enter(self, formed: FormedRound, limits: Limits) -> tuple[int, T]:
        """Build everything, and fill it with what the ranks carry, or else with the newest checkpoint.

        Returns the number of finished steps, and what was built.
        """
        self._number = formed.number
        # Each group draws another number, as two of them may come to the same step, also in two runs.
        self._origin = least(int.from_bytes(os.urandom(_ORIGIN_BYTES), "big"))[0]
        plan = self._copies if limits.handing > 0 else None
        directory = None if plan is None else plan.directory
        if directory is not None and self._is_new:
            self._is_new = False
            self._take_up(Path(directory))
        starts = (directory is not None or self._in_memory_at_stop) and max(formed.steps) == NO_STATE
        if starts:
            newest = newest_step(self._directory)
            self._saved = NO_STATE if newest is None else newest
        step, built = self._filled(limits, starts=starts)
        if starts and step > max(0, self._saved) and dist.get_rank() == 0:
            say(f"going on after step {step}, from the memory of hosts, where earlier processes have left it")
        kept = KeptFiles() if directory is None else self._kept()
        processes = formed.processes
        if plan is not None and not processes:
            processes = processes_of_hosts([host for (host,) in gathered(int(os.environ.get("GROUP_RANK", "0")))])
        self._ring = formed_ring(plan, self._origin, processes, limits.collective, kept)
        self._carried = []
        return step, built

    def _take_up(self, directory: Path) -> None:
        """Carry the copies that processes before this one have left on this host."""
        local_rank, local_size = (int(os.environ.get(name, default)) for name, default in _PLACE)
        try:
            key = job_key(os.environ, self._directory)
            self._files = CopyFiles.opened(directory, key, local_rank, local_size)
            parts = parts_of(self._files.found())
            self._carried += sorted(parts, key=lambda each: each.claim.part != dist.get_rank())
        except OSError as error:
            say(f"copies of the state do not outlive this process: {error}")

    def _kept(self) -> KeptFiles:
        """Return the files of the newest copy of which the hosts have all parts, and remove all others.

        Called in every rank.
        """
        copies = [each for each in self._carried if each.file is not None]
        found = whole(copies, NO_STATE)
        claims = [] if found is None else [found.claim_of(part) for part in range(len(found.holders))]
        before = tuple(each.file for each in copies if each.file is not None and each.claim in claims)
        if self._files is not None:
            self._files.keep_only(before)
        return KeptFiles(self._files, before)

    def _filled(self, limits: Limits, *, starts: bool) -> tuple[int, T]:
        carried, seconds = self._carried, limits.handing
        found = whole(carried, self._saved) if seconds > 0 else None
        # Also after a loss: the newest state may still be the one that earlier processes have left to the keepers.
        asks_keepers = self._in_memory_at_stop and (starts or (found is None and seconds > 0))
        if asks_keepers and least(int(not self._keepers_are_slow))[0]:
            carried = [*carried, *kept_parts(self._directory, self._saved)]
            found = whole(carried, self._saved)
            if starts:  # no agent counts the seconds until this round is entered
                seconds = max(seconds, limits.collective)
        if found is not None and has_memory(carried, found):
            built = self._built(found.step)
            begun = time.monotonic()
            try:
                self._divides_alike = spread(self._states, carried, found, seconds)
            except RuntimeError:
                self._late = self._late + 1 if time.monotonic() > begun + _MOST_OF_IT * seconds else 0
                if self._late == _MOST_LATE:
                    self._carried, self._late, self._keepers_are_slow = [], 0, True
                raise
            self._late = 0
            if self._divides_alike:
                return found.step, built
            self.leave()
            del built
        step = newest_step(self._directory)
        built = self._built(step or 0)
        if step is not None and self._checkpoints is not None:
            self._checkpoints.load(step)
            self._saved = step
        return step or 0, built

    def leave(self) -> None:
        """Drop all of it but what this rank carries into the next round, with the copies that it has."""
        self._end_copies()
        self.optimizers, self._checkpoints, self._states = [], None, {}

    def end(self, step: int, *, is_over: bool) -> None:
        """End what is under way. Copies that nobody needs any more are removed.

        Args:
            step: The number of finished steps, or `NO_STATE`.
            is_over: Whether the training is finished; otherwise, processes that start later go on with it.
        """
        self._end_copies()
        self._carried = []
        files, self._files = self._files, None
        if files is not None and (is_over or NO_STATE < step <= self._saved):
            files.remove()
        elif files is not None:
            files.close()

    def _end_copies(self) -> None:
        ring, self._ring = self._ring, None
        if ring is not None:
            self._carried += ring.end()

    def prepare(self, step: int, seconds: float) -> DividedState | None:
        """Return what this rank can hand over in this time, once the next round is known.

        None in all ranks if one cannot: then a checkpoint was saved, with which the next round begins.
        """
        self._end_copies()  # what is still sent would take the network and the time from the hand-over
        divided = prepared(self._states, self._origin, seconds, divides_alike=self._divides_alike)
        if divided is None:
            self.save(step)
        return divided

    def hand_over(self, divided: DividedState, step: int, following: Sequence[int | None], seconds: float) -> None:
        """Give the state to the ranks that stay. From then on this one trains in the next round only, if at all.

        Args:
            divided: From `prepare`.
            step: The number of finished steps.
            following: For each rank the one that it is in the next round, None if it leaves.
            seconds: How long it may take.
        """
        for optimizer in self.optimizers:
            optimizer.zero_grad()  # this round makes no further step, and its new part needs the memory
        try:
            part = give(divided, step, following, seconds)
        except RuntimeError as error:
            say(f"going back to the newest copy or checkpoint: {error}")
            raise
        if part is not None:
            self._carried.append(part)

    def begin_step(self, step: int) -> None:
        """Take a copy if it is time for one. A failed step is not repeated from here."""
        if self._ring is None:
            self._carried = []  # no next round came after `prepare`, and this one goes on without copies
        else:
            self._ring.take(step, self._states)

    def undo_step(self) -> bool:
        """Do nothing: the next round begins with a copy or a checkpoint."""
        return True

    def save(self, step: int) -> object:
        """Save a checkpoint. Called in every rank. Raises RuntimeError if a rank cannot.

        Returns KEPT if the job stops, there is not the time for that, and hosts that stay have the state instead.
        """
        if self._checkpoints is None:
            raise RuntimeError("there is no process group to save with")
        if self._in_memory_at_stop and is_needed(self._saving):
            self._end_copies()  # as in `prepare`
            if keep(self._states, self._origin, step, self._directory, divides_alike=self._divides_alike):
                return KEPT
        begun = time.monotonic()
        self._checkpoints.save(step)
        self._saving = time.monotonic() - begun
        self._saved = step
        if self._in_memory_at_stop and dist.get_rank() == 0:
            forget(Path(self._directory))
        return None

    def _built(self, step: int) -> T:
        states, built = self._build(RoundRanks.present(step, self._number))
        self.optimizers, modules = _optimizers(states), _modules(states)
        if len(modules) != 1:
            raise ValueError(f"`build` returned {len(modules)} modules instead of one")
        self._checkpoints = ShardedCheckpoints(
            self._directory, modules[0], self.optimizers, others=_others(states), keep=self._keep
        )
        self._states = dict(states)
        return built


TrainedState = Union[Replicated[T], Sharded[T]]


def _optimizers(states: States) -> list[torch.optim.Optimizer]:
    found = [each for each in states.values() if isinstance(each, torch.optim.Optimizer)]
    if not found:
        raise ValueError("there is no optimizer among the states")
    return found


def _modules(states: States) -> list[torch.nn.Module]:
    return [each for each in states.values() if isinstance(each, torch.nn.Module)]


def _others(states: States) -> dict[str, Any]:
    large = (torch.nn.Module, torch.optim.Optimizer)
    return {name: each for name, each in states.items() if not isinstance(each, large)}
