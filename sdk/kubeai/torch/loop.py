"""A script's own training loop goes on in process when hosts leave or join, announced or not.

    import kubeai.elastic as kubeai
    from kubeai.torch.loop import ElasticLoop, RankLost, Replicated

    kubeai.init()
    states = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    loop = ElasticLoop(Replicated(states, save, load))
    for step, ddp in loop.steps(10_000):
        try:
            with loop.attempt():
                ...forward, backward, optimizer.step()
        except RankLost:
            continue

It is for jobs under torchrun with the rendezvous backend `kubeai`. Under another launcher, or alone, it trains, but the
processes of one run remain the same.
"""

from __future__ import annotations

import contextlib
import gc
import os
import time
from typing import TYPE_CHECKING, Any, Callable, Generic, Iterator, TypeVar

import torch  # type: ignore[import-not-found,unused-ignore]
import torch.distributed as dist  # type: ignore[import-not-found,unused-ignore]
from kubeai.elastic import elastic_agent, regroup
from kubeai.elastic.api import resumed, seconds_left
from kubeai.elastic.loop import finish_step, saves_need_all_ranks

from .connections import Connections
from .decisions import (
    NO_STATE,
    FormedRound,
    Move,
    NotFormed,
    RoundFile,
    is_lost_rank,
    is_newer,
    next_move,
)
from .early_group import EarlyGroup
from .following import PATIENCE_SECONDS, agreed_hosts
from .group import form_alone, form_group, leave_group
from .moves import is_room_for, next_ranks
from .ranks import RoundRanks
from .ranks_in_store import ports_of_all
from .settings import Limits, PeerCopies
from .states import Replicated, Sharded
from .stderr import say, say_way

if TYPE_CHECKING:
    from .decisions import WorkerRound
    from .states import TrainedState

__all__ = ["ElasticLoop", "Limits", "PeerCopies", "RankLost", "Replicated", "RoundRanks", "Sharded"]

T = TypeVar("T")

_LOOK_SECONDS = 0.005
_PART_OF_THE_TIME_LEFT = 0.25
"""How much of it may pass in waiting for the next round: a checkpoint may have to be saved afterwards."""
_UNEXPLAINED_SECONDS = 1.0
"""How long an error that names no collective waits for a newer round. A lost process is known after 0.3 to 1 s."""


class RankLost(RuntimeError):  # noqa: N818 - the name says what happened
    """Another rank of the round is gone, or does not answer. Its cause is the error of the collective."""


class ElasticLoop(Generic[T]):
    """The rounds of one training, between whose iterations hosts leave and join.

    Args:
        state: What the training changes, `Replicated` or `Sharded`.
        backend: Of the process group; nccl if there are GPUs, otherwise gloo.
        limits: How long to wait.
    """

    def __init__(self, state: TrainedState[T], *, backend: str | None = None, limits: Limits | None = None) -> None:
        self._state = state
        self._backend = backend or ("nccl" if torch.cuda.is_available() else "gloo")
        self._limits = limits or Limits()
        self._rounds = RoundFile.from_environment(os.environ)
        self._step = NO_STATE
        self._round = 0
        self._entered: WorkerRound | None = None
        self._store: Any = None
        self._built: Any = None
        self._connections: Connections | None = None
        self._early: EarlyGroup | None = None
        self._failure: RuntimeError | None = None
        self._is_finished = False

    @property
    def built(self) -> T:
        """Return what `build` has made in the present round, None before the first one."""
        built: T = self._built
        return built

    def steps(self, steps: int, *, every: int | None = None) -> Iterator[tuple[int, T]]:
        """Yield the number of finished steps and what `build` has returned, until `steps` steps are finished.

        The body is one step, in `attempt()`. After it, the process saves if a checkpoint is requested, saves and exits
        if the job stops, or enters the next round. A step in which a rank was lost comes again. The default process
        group is made here, and remains initialised at the end.

        Args:
            steps: The number of steps, counted from the beginning of the whole training.
            every: Also save each time so many steps are finished.

        Raises:
            RankLost: Ranks were lost and there was no next round.
            RuntimeError: The body has attempted no step. Errors of `build`, `save` and `load` pass through.
        """
        import torch._dynamo  # noqa: F401, PLC0415 - the first step would import it, also while other ranks wait

        if isinstance(self._state, Sharded):
            saves_need_all_ranks()
        is_over = False
        with _few_objects():
            self._begin()
            try:
                yield from self._iterations(steps, every)
                is_over = True
            finally:
                if self._early is not None:
                    self._early.drop()
                self._state.end(self._step, is_over=is_over)

    def _iterations(self, steps: int, every: int | None) -> Iterator[tuple[int, T]]:
        while True:
            if self._rounds is not None and is_newer(self._rounds.newest(), self._round):
                self._change_round(NotFormed("a newer round has come"))
            if self._step >= steps:
                failure = self._failure_of(dist.barrier)
                if failure is None:
                    return
            else:
                if self._rounds is not None:
                    self._look_ahead(self._rounds)
                self._state.begin_step(self._step)
                self._is_finished = False
                yield self._step, self.built
                failure, self._failure = self._failure, None
                if self._is_finished:
                    failure = self._failure_of(lambda: self._finish_step(every)) or failure
                elif failure is None:
                    raise RuntimeError("no step was attempted: the body of the loop belongs into `loop.attempt()`")
            if failure is not None:
                self._change_round(failure)

    @contextlib.contextmanager
    def attempt(self) -> Iterator[None]:
        """Surround one step: forward, backward and the optimizers. The step is finished if no error ends it.

        If a rank is lost, everything is as before the step, unless an optimizer has changed parameters already. So
        collectives belong before the optimizers. A further attempt in the same iteration, such as around an evaluation,
        is not repeated.

        Raises:
            RankLost: Another rank is gone. Leave the iteration with `continue`: the step comes again.
            Exception: The error of the body. One that names no collective, but may come from one, is raised 1 s later.
        """
        try:
            yield
        except RuntimeError as error:
            if not self._is_lost_rank(error):
                raise
            self._failure = RankLost(f"a rank was lost in step {self._step + 1}: {error}")
            if not self._is_finished and not self._state.undo_step():
                self._step = NO_STATE
            raise self._failure from error
        if not self._is_finished:
            self._is_finished = True
            self._step += 1

    def _begin(self) -> None:
        if self._rounds is None:
            form_alone(self._backend, self._limits.collective)
            formed = FormedRound(0, (NO_STATE,) * dist.get_world_size(), ())
            self._step, self._built = self._state.enter(formed, self._limits)
        elif self._rounds.joins:
            self._round = self._rounds.started_in
            self._rounds.say(0, started=True)
            self._enter_next(self._rounds, None)
        else:
            newest = self._rounds.newest()  # the agent writes it before it starts a process
            failure = self._enter(newest, self._rounds) if newest else NotFormed("there is no round")
            if failure is not None:
                self._enter_next(self._rounds, failure)
        resumed(self._step)

    def _finish_step(self, every: int | None) -> None:
        finish_step(self._step, self._state.save, is_due=every is not None and self._step % every == 0)
        if self._rounds is not None and regroup.should_regroup(self._step):
            # Stand at the agreed step until the next round comes. The agent ends a process that is not part of it.
            with regroup.changing():
                is_whole = self._hold(self._rounds)
                move = self._wait(self._rounds, self._limits.holding, is_whole=is_whole)
            if move is Move.GIVE_UP:
                raise NotFormed(f"this process is not part of the round after {self._round}")

    def _hold(self, rounds: RoundFile) -> bool:
        """Make the state ready for the next round, and report that this rank holds.

        Returns whether the present round could still go on. It cannot once the parts of the state are others'.
        """
        divided = self._state.prepare(self._step, self._limits.handing)
        entered = self._entered
        if divided is None or not isinstance(self._state, Sharded) or entered is None:
            regroup.report_holding()
            return True
        # The agents of those that leave want to end them as soon as there is a next round.
        with elastic_agent.deferring_sigterm():
            regroup.report_holding()
            hosts = agreed_hosts(self._store, self._step, rounds, entered, patience=_patience())
            following = None if hosts is None else next_ranks(entered.hosts, hosts)
            if following is None or not is_room_for(following):
                say_way("there is no next round yet" if following is None else "more than half of the ranks leave")
                self._state.save(self._step)
                return True
            self._state.hand_over(divided, self._step, following, self._limits.handing)
        return False

    def _failure_of(self, action: Callable[[], object]) -> RuntimeError | None:
        """Carry out an action of all ranks. Return the error if a rank was lost in it."""
        try:
            action()
        except RuntimeError as error:
            if not self._is_lost_rank(error):
                raise
            return error
        return None

    def _is_lost_rank(self, error: RuntimeError) -> bool:
        """Return whether an error comes from a failed collective.

        Any other one is the script's, such as a wrong shape or a full disk: the others then lose this rank. A
        collective of which nobody knows the words may have failed, too, but then another round comes soon.
        """
        if self._rounds is None or isinstance(error, torch.OutOfMemoryError):
            return False
        return is_lost_rank(error) or self._is_overtaken_soon(self._rounds)

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
            say(f"waiting for the next round: {failure}")
        with regroup.changing():
            self._leave(failure)
            if self._rounds is not None:
                self._enter_next(self._rounds, failure)

    def _leave(self, failure: RuntimeError) -> None:
        # Its frames, and those of its cause, would keep what the failed step has computed in memory.
        failure.with_traceback(None).__context__ = failure.__cause__ = None
        self._state.leave()
        backends = leave_group(self._connections)
        self._built = self._connections = self._store = self._entered = None
        gc.collect()  # wrappers, and with them buckets of gradients, are part of reference cycles
        backends.clear()

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
            self._look_ahead(rounds)
            time.sleep(_LOOK_SECONDS)

    def _look_ahead(self, rounds: RoundFile) -> None:
        """Begin to connect for the round that may follow. NCCL has nothing that could be done before."""
        foretold = rounds.following()
        if foretold is None or foretold.round.number <= self._round or self._backend != "gloo":
            return
        if self._early is not None:
            if self._early.foretold == foretold:
                return
            self._early.drop()
        self._early = EarlyGroup(foretold, rounds.local_rank, self._limits.collective)

    def _enter(self, entered: WorkerRound, rounds: RoundFile) -> RuntimeError | None:
        """Enter a round. Return the error if its group was not formed, or if ranks were lost before they were equal."""
        self._round = entered.number
        failure = self._failure_of(lambda: self._form(entered, rounds))
        if failure is None:
            rounds.say(entered.number, started=True)
        else:
            say(str(failure))
            self._leave(failure)
        return failure

    def _form(self, entered: WorkerRound, rounds: RoundFile) -> None:
        def is_over() -> bool:
            return is_newer(rounds.newest(), entered.number)

        early, self._early = self._early, None
        self._connections = Connections()
        formed = form_group(
            entered,
            rounds.local_rank,
            self._step,
            early=early,
            backend=self._backend,
            timeout=self._limits.collective,
            seconds=self._limits.forming,
            is_over=is_over,
        )
        if formed.connections is None:
            self._connections.note()  # before `build` forks workers of a loader
        else:
            self._connections = formed.connections
        if self._step < max(formed.steps):
            self._step = NO_STATE  # half a state, if its source is lost meanwhile
        processes = tuple(host.processes for host in entered.hosts)
        present = FormedRound(entered.number, tuple(formed.steps), processes)
        self._step, self._built = self._state.enter(present, self._limits)
        self._entered, self._store = entered, formed.store
        # Of groups that `build` has made.
        store = dist.PrefixStore("built/", formed.store)
        self._connections.note_later(ports_of_all(store, dist.get_rank(), dist.get_world_size(), is_over=is_over))


def _patience() -> float:
    """Return how long a rank waits for the next round before it asks for a checkpoint, in seconds."""
    left = seconds_left()
    return PATIENCE_SECONDS if left is None else min(PATIENCE_SECONDS, _PART_OF_THE_TIME_LEFT * left)


@contextlib.contextmanager
def _few_objects() -> Iterator[None]:
    """Let a garbage collection look only at objects that are made from now on: 5 ms at a change instead of 300."""
    is_ours = not gc.get_freeze_count()
    if is_ours:
        gc.collect()
        gc.freeze()
    try:
        yield
    finally:
        if is_ours:
            gc.unfreeze()
