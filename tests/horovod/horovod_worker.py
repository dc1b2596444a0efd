"""A training script as users of Horovod elastic write it.

It has the options of `simulator.job`, so the judge can judge it.

Real: the driver that starts it, the rendezvous, the notifications, and `horovod.common.elastic` that drives it (state,
commits, resets), and the SDK. Collectives are real (`horovod_gloo`) where HOROVOD_COLLECTIVES is `gloo`, otherwise a
stand-in (`horovod_core`), between hosts that have names where it is `hosts`. Not real: gradients on a GPU.
"""

import os
import resource
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Protocol

import kubeai.elastic as kubeai
import numpy as np
from horovod.common.elastic import ObjectState, run_fn  # type: ignore[import-not-found]  # It has its own environment.
from numpy.typing import NDArray

from simulator import checkpoint
from simulator.events import EventLog, JobEventKind
from simulator.job import JobOptions, parse_arguments
from simulator.model import digest, shards_of
from tests.horovod import horovod_core


class WorkerCore(Protocol):
    """What the script needs of Horovod's core."""

    def rank(self) -> int: ...
    def size(self) -> int: ...
    def epoch(self) -> int: ...
    def reset(self) -> None: ...
    def allreduce(self, values: NDArray[np.int64]) -> NDArray[np.int64]: ...
    def broadcast(self, value: Any) -> Any: ...


@dataclass(frozen=True, slots=True)
class WorkerScript:
    """One process of the job. Its state is Horovod's: `params` and `step`."""

    options: JobOptions
    core: WorkerCore
    run: int
    host: str
    events: EventLog

    def main(self) -> None:
        """Load, train to the last step; ends the process where the SDK says so."""
        kubeai.init(rank=self.core.rank)
        kubeai.on_notice(self._notice)
        params, step = self._load() if self.core.rank() == 0 else (self.options.task.first_params(), 0)
        state = ObjectState(self.core.broadcast, self.core.rank, params=params, step=step)
        run_fn(self._train, self.core.reset)(state)
        self.events.write(
            JobEventKind.JOB_FINISHED, run=self.run, step=state.step, digest=digest(state.params, state.step)
        )

    def _train(self, state: Any) -> None:
        while state.step < self.options.steps:
            if kubeai.check_alive() == False:  # noqa: E712 - as users write it
                self._leave(state)
            self._step(state)
            if self.options.checkpoint_every and state.step % self.options.checkpoint_every == 0:
                self._save(state)
            if state.step % self.options.commit_every == 0:
                state.commit()

    def _step(self, state: Any) -> None:
        task, core, step = self.options.task, self.core, state.step + 1
        gradient = task.gradient(state.params, step, shards_of(core.rank(), core.size(), task.shards))
        time.sleep(self.options.step_seconds)
        state.params = task.updated(state.params, core.allreduce(gradient))
        state.step = step
        done = digest(state.params, step)
        self._write(JobEventKind.STEP_APPLIED, epoch=core.epoch(), step=step, digest=done)

    def _leave(self, state: Any) -> NoReturn:
        self._write(JobEventKind.FLAG_SEEN, directive=kubeai.directive().kind.value, step=state.step)
        self._save(state)
        sys.exit(-1)

    def _save(self, state: Any) -> None:
        if self.core.rank() == 0:
            checkpoint.save(self.options.checkpoint, state.params, state.step)
            self._write(JobEventKind.CHECKPOINT_SAVED, step=state.step)

    def _load(self) -> tuple[Any, int]:
        saved = checkpoint.load(self.options.checkpoint)
        if saved is None:
            return self.options.task.first_params(), 0
        self.events.write(JobEventKind.CHECKPOINT_LOADED, run=self.run, step=saved[1])
        return saved

    def _notice(self, notice: kubeai.Notice) -> None:
        self._write(JobEventKind.NOTICE_SEEN, notice=notice.id, subject=notice.host)

    def _write(self, kind: JobEventKind, **fields: Any) -> None:
        self.events.write(kind, run=self.run, host=self.host, rank=self.core.rank(), **fields)


def main(arguments: list[str]) -> None:
    host, run = os.environ["HOROVOD_HOSTNAME"], int(os.environ["KUBEAI_RUN"])
    # For the cloud, which ends what runs on a node that it takes away.
    node = Path(os.environ["SIM_STATE"]) / "nodes" / host
    node.mkdir(parents=True, exist_ok=True)
    (node / str(os.getpid())).touch()
    # A removed rank ends itself with SIGABRT. No core file for it: this is the ordinary way to leave.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    options = parse_arguments(arguments)
    events = EventLog.from_environment(f"worker-{host}")
    WorkerScript(options, _core(run, host, events), run, host, events).main()


def _core(run: int, host: str, events: EventLog) -> WorkerCore:
    collectives = os.environ.get("HOROVOD_COLLECTIVES")
    if collectives != "gloo":
        return horovod_core.CompiledCore(os.environ, run, events, on_loopback=collectives != "hosts")
    # Here, as torch is not in the environment of the other one.
    from tests.horovod.horovod_gloo import GlooCore  # noqa: PLC0415

    return GlooCore(run, host, events, float(os.environ.get("HOROVOD_RESET_SECONDS", "0")))


if __name__ == "__main__":
    main(sys.argv[1:])
