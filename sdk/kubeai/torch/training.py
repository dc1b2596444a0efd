"""A training loop that goes on in process when hosts leave or join, announced or not.

    import kubeai.elastic as kubeai
    from kubeai.torch.training import Replicated, train

    def backward(module, batch):
        loss = loss_of(module, [data[index] for index in batch.indices])
        (loss * batch.weight).backward()

    kubeai.init()
    train(Replicated(model, optimizer, save, load), backward, samples=len(data), global_batch=64, steps=10_000)

It is for jobs under torchrun with the rendezvous backend `kubeai`. Under another launcher it trains, but the processes
of one run remain the same.
"""

from __future__ import annotations

import os
import sys
import time
from array import array
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Callable

import torch  # type: ignore[import-not-found,unused-ignore]
import torch.distributed as dist  # type: ignore[import-not-found,unused-ignore]
from kubeai.elastic import regroup
from kubeai.elastic.api import resumed
from kubeai.elastic.loop import finish_step
from kubeai.torchrun.member import RoundStoreAddress
from kubeai.torchrun.stores import CannotReach, connect

from .decisions import (
    NO_STATE,
    Batch,
    DataOrder,
    Move,
    NotFormed,
    RoundFile,
    is_lost_rank,
    is_newer,
    next_move,
)
from .states import Replicated, Sharded, TrainedState

if TYPE_CHECKING:
    from .decisions import WorkerRound

__all__ = ["Batch", "Limits", "Replicated", "Sharded", "train"]

_FIRST_PAUSE, _LONGEST_PAUSE = 0.002, 0.05
_LOOK_SECONDS = 0.005
_UNEXPLAINED_SECONDS = 1.0
"""How long an error that names no collective waits for a newer round. A lost process is known after 0.3 to 1 s."""

_hooks: tuple[object, object] | None = None
"""`sys.excepthook` before torch has wrapped it with the prefix of a rank, and since."""


@dataclass(frozen=True)
class Limits:
    """How long processes wait, in seconds.

    Attributes:
        collective: For the others in a collective. A frozen host is noticed after this time only.
        forming: For all processes of a new round.
        holding: At an agreed step for the next round. Then training goes on.
        lost: For the next round after a collective has failed. Then the process fails, and is restarted.
    """

    collective: float = 30.0
    forming: float = 20.0
    holding: float = 60.0
    lost: float = 60.0


def train(  # noqa: PLR0913 - what a training consists of
    state: TrainedState,
    backward: Callable[[Any, Batch], object],
    *,
    samples: int,
    global_batch: int,
    steps: int,
    seed: int = 0,
    every: int | None = None,
    backend: str | None = None,
    limits: Limits | None = None,
) -> None:
    """Train until `steps` steps are finished. The default process group remains initialised.

    It makes the default process group itself. Each step calls `optimizer.zero_grad()`, `backward` and
    `optimizer.step()`. A step that fails because a rank was lost is repeated in the next round.

    Args:
        state: `Replicated` or `Sharded`.
        backward: Called as `backward(module, batch)`. It computes the gradients of `batch.weight` times the mean loss
            of the samples `batch.indices`. It does not keep the module, which each round replaces.
        samples: The size of the data set.
        global_batch: The number of samples in each step, over all ranks; at least the number of ranks.
        steps: The number of steps, counted from the beginning of the whole training.
        seed: Of the order of the samples.
        every: Also save each time so many steps are finished.
        backend: Of the process group; nccl if there are GPUs, otherwise gloo.
        limits: How long to wait.

    Raises:
        ValueError: There are no samples, or fewer in a step than ranks.
        RuntimeError: Ranks were lost and there was no next round. Errors of `backward`, `save` and `load` pass through.
    """
    order = DataOrder(samples, global_batch, lambda epoch: _permutation(samples, seed, epoch))
    backend = backend or ("nccl" if torch.cuda.is_available() else "gloo")
    rounds = RoundFile.from_environment(os.environ)
    training = _Training(state, backward, order, rounds, backend=backend, limits=limits or Limits())
    training.run(steps, every)


class _Training:
    def __init__(  # noqa: PLR0913 - what a training consists of
        self,
        state: TrainedState,
        backward: Callable[[Any, Batch], object],
        order: DataOrder,
        rounds: RoundFile | None,
        *,
        backend: str,
        limits: Limits,
    ) -> None:
        self._state = state
        self._backward = backward
        self._order = order
        self._rounds = rounds
        self._backend = backend
        self._limits = limits
        self._step = NO_STATE
        self._round = 0

    def run(self, steps: int, every: int | None) -> None:
        """Train to the end, in as many rounds as it takes."""
        self._begin()
        while True:
            if self._rounds is not None and is_newer(self._rounds.newest(), self._round):
                self._change_round(NotFormed("a newer round has come"))
                continue
            is_last = self._step >= steps
            failure = self._attempt(dist.barrier if is_last else lambda: self._train_step(every))
            if failure is not None:
                self._change_round(failure)
            elif is_last:
                return

    def _begin(self) -> None:
        if self._rounds is None:
            # From the variables which any launcher sets.
            dist.init_process_group(self._backend, timeout=timedelta(seconds=self._limits.collective))
            self._step = self._state.enter([NO_STATE] * dist.get_world_size())
        elif self._rounds.joins:
            import torch._dynamo  # noqa: F401, PLC0415  # The first step would import it while all others wait.

            self._round = self._rounds.started_in
            self._rounds.say(0, started=True)
            self._enter_next(self._rounds, None)
        else:
            newest = self._rounds.newest()  # the agent writes it before it starts a process
            failure = self._enter(newest, self._rounds) if newest else NotFormed("there is no round")
            if failure is not None:
                self._enter_next(self._rounds, failure)
        resumed(self._step)

    def _train_step(self, every: int | None) -> None:
        batch = self._order.batch(self._step, dist.get_rank(), dist.get_world_size())
        self._state.begin_step()
        try:
            self._state.optimizer.zero_grad()
            self._backward(self._state.module, batch)
            self._state.optimizer.step()
        except RuntimeError:
            self._state.undo_step()
            raise
        self._step += 1
        finish_step(self._step, self._state.save, is_due=every is not None and self._step % every == 0)
        if self._rounds is not None and regroup.should_regroup(self._step):
            # Stand at the agreed step until the next round comes. The agent ends a process that is not part of it.
            self._state.hold(self._step)
            regroup.report_holding()
            if self._wait(self._rounds, self._limits.holding, is_whole=True) is Move.GIVE_UP:
                raise NotFormed(f"this process is not part of the round after {self._round}")

    def _attempt(self, action: Callable[[], object]) -> RuntimeError | None:
        """Carry out an action, and return the error of a failed collective, without the frames that it keeps alive.

        Any other error is the script's, such as a wrong shape or a full disk, and is raised: the others then lose this
        rank. A collective of which nobody knows the words may have failed, too, but then another round comes soon.
        """
        try:
            action()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            if self._rounds is None or not (is_lost_rank(error) or self._is_overtaken_soon(self._rounds)):
                raise
            failure = error.with_traceback(None)
            failure.__context__ = failure.__cause__ = None
            return failure
        return None

    def _is_overtaken_soon(self, rounds: RoundFile) -> bool:
        """Return whether a newer round comes within a second."""
        end = time.monotonic() + _UNEXPLAINED_SECONDS
        while not is_newer(rounds.newest(), self._round):
            if time.monotonic() > end:
                return False
            time.sleep(_LOOK_SECONDS)
        return True

    def _change_round(self, failure: RuntimeError) -> None:
        """Leave the process group at once, so that no rank waits for this one, and enter the next round."""
        if not isinstance(failure, NotFormed):
            sys.stderr.write(f"kubeai: step {self._step + 1} has failed, waiting for the next round: {failure}\n")
        self._state.leave()
        leave_group()
        if self._rounds is not None:
            self._enter_next(self._rounds, failure)

    def _enter_next(self, rounds: RoundFile, failure: RuntimeError | None) -> None:
        """Enter the next round that can be formed. Raises `failure` if no round comes in time."""
        while True:
            if failure is not None:
                rounds.say(self._round, started=True, lost=True)
            limit = None if failure is None else self._limits.lost
            move = self._wait(rounds, limit, is_whole=False)
            if move is Move.GIVE_UP and failure is not None:
                raise failure
            newest = rounds.newest()
            failure = self._enter(newest, rounds) if newest is not None else failure
            if failure is None:
                return

    def _wait(self, rounds: RoundFile, limit: float | None, *, is_whole: bool) -> Move:
        end = None if limit is None else time.monotonic() + limit
        while True:
            expired = end is not None and time.monotonic() > end
            move = next_move(rounds.newest(), self._round, expired=expired, is_whole=is_whole)
            if move is not Move.WAIT:
                return move
            time.sleep(_LOOK_SECONDS)

    def _enter(self, entered: WorkerRound, rounds: RoundFile) -> RuntimeError | None:
        """Enter a round. Return the error if its group was not formed, or if ranks were lost before they were equal."""
        self._round = entered.number
        failure = self._attempt(lambda: self._form(entered, rounds))
        if failure is None:
            rounds.say(entered.number, started=True)
        else:
            sys.stderr.write(f"kubeai: {failure}\n")
            self._state.leave()
            leave_group()
        return failure

    def _form(self, entered: WorkerRound, rounds: RoundFile) -> None:
        steps = form_group(
            entered,
            rounds.local_rank,
            self._step,
            backend=self._backend,
            timeout=self._limits.collective,
            seconds=self._limits.forming,
            is_over=lambda: is_newer(rounds.newest(), entered.number),
        )
        if self._step < max(steps):
            self._step = NO_STATE  # half a state, if its source is lost meanwhile
        self._step = self._state.enter(steps)


def _permutation(samples: int, seed: int, epoch: int) -> array[int]:
    """Return the order of one epoch. The same seed gives the same order in every process."""
    generator = torch.Generator().manual_seed(seed + (epoch << 32))
    return array("q", torch.randperm(samples, generator=generator).tolist())


def form_group(  # noqa: PLR0913 - each is one fact about the group
    entered: WorkerRound,
    local_rank: int,
    step: int,
    *,
    backend: str,
    timeout: float,
    seconds: float,
    is_over: Callable[[], bool],
) -> list[int]:
    """Make the default process group that of a round, and return the finished steps of each rank.

    Torch waits for the other ranks where nothing can interrupt it. So all of them say in the store that they are there
    before any begins.

    Args:
        entered: The round.
        local_rank: Added to the round's base rank.
        step: This process's number of finished steps.
        backend: As for `init_process_group`.
        timeout: Of collectives, in seconds.
        seconds: How long to wait for the other ranks.
        is_over: Returns whether a newer round has come.

    Raises:
        NotFormed: The round is not complete after this time, or over.
    """
    global _hooks  # noqa: PLW0603 - see `leave_group`
    rank, size = entered.base_rank + local_rank, entered.world_size
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size))
    try:
        store = dist.PrefixStore(f"kubeai/{entered.number}/", connect(RoundStoreAddress(entered.address, entered.port)))
        store.set(f"step/{rank}", str(step))
        store.add("arrived", 1)
        end, pause = time.monotonic() + seconds, _FIRST_PAUSE
        while store.add("arrived", 0) < size:
            if is_over():
                raise NotFormed("a newer round has come")
            if time.monotonic() > end:
                raise NotFormed(f"not all ranks have come within {seconds:g} s")
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        # Torch wraps `sys.excepthook` each time; `leave_group` takes that back.
        before, limit = sys.excepthook, timedelta(seconds=timeout)
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=limit)
        _hooks = before, sys.excepthook
        return [int(store.get(f"step/{each}")) for each in range(size)]
    except (CannotReach, RuntimeError) as error:
        raise NotFormed(f"round {entered.number}: {error}") from error


def leave_group() -> None:
    """Destroy the default process group, if there is one. Ranks that wait for this one then fail, too."""
    global _hooks  # noqa: PLW0603 - sys.excepthook is one for the process, too
    if _hooks is not None and sys.excepthook is _hooks[1]:
        sys.excepthook = _hooks[0]  # type: ignore[assignment]
    _hooks = None
    if dist.is_initialized():
        dist.destroy_process_group()
