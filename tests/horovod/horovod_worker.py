"""A training script as users of Horovod elastic write it, which can be judged: options as those of `simulator.job`.

Real: the driver that starts it, the rendezvous, the notifications, and `horovod.common.elastic` that drives it (state,
commits, resets), and the SDK. Not real: collectives (`horovod_core`), gradients on a GPU.
"""

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import kubeai.elastic as kubeai
from horovod.common.elastic import ObjectState, run_fn  # type: ignore[import-not-found]  # It has its own environment.

from simulator import checkpoint
from simulator.events import EventLog, Kind
from simulator.job import Options, parse_arguments
from simulator.model import digest, shards_of
from tests.horovod.horovod_core import Core


@dataclass(frozen=True, slots=True)
class Script:
    """One process of the job. Its state is Horovod's: `params` and `step`."""

    options: Options
    core: Core
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
        self.events.write(Kind.JOB_FINISHED, run=self.run, step=state.step, digest=digest(state.params, state.step))

    def _train(self, state: Any) -> None:
        while state.step < self.options.steps:
            if kubeai.check_alive() == False:  # noqa: E712 - as users write it
                self._leave(state)
            self._step(state)
            if self.options.checkpoint_every and state.step % self.options.checkpoint_every == 0:
                self._save(state)
            state.commit()

    def _step(self, state: Any) -> None:
        task, core, step = self.options.task, self.core, state.step + 1
        gradient = task.gradient(state.params, step, shards_of(core.rank(), core.size(), task.shards))
        time.sleep(self.options.step_seconds)
        state.params = task.updated(state.params, core.allreduce(gradient))
        state.step = step
        done = digest(state.params, step)
        self._write(Kind.STEP_APPLIED, epoch=core.epoch(), step=step, digest=done)

    def _leave(self, state: Any) -> NoReturn:
        self._write(Kind.FLAG_SEEN, directive=kubeai.directive().kind.value, step=state.step)
        self._save(state)
        sys.exit(-1)

    def _save(self, state: Any) -> None:
        if self.core.rank() == 0:
            checkpoint.save(self.options.checkpoint, state.params, state.step)
            self._write(Kind.CHECKPOINT_SAVED, step=state.step)

    def _load(self) -> tuple[Any, int]:
        saved = checkpoint.load(self.options.checkpoint)
        if saved is None:
            return self.options.task.first_params(), 0
        self.events.write(Kind.CHECKPOINT_LOADED, run=self.run, step=saved[1])
        return saved

    def _notice(self, notice: kubeai.Notice) -> None:
        self._write(Kind.NOTICE_SEEN, notice=notice.id, subject=notice.host)

    def _write(self, kind: Kind, **fields: Any) -> None:
        self.events.write(kind, run=self.run, host=self.host, rank=self.core.rank(), **fields)


def main(arguments: list[str]) -> None:
    host, run = os.environ["HOROVOD_HOSTNAME"], int(os.environ["KUBEAI_RUN"])
    # For the cloud, which ends what runs on a node that it takes away.
    node = Path(os.environ["SIM_STATE"]) / "nodes" / host
    node.mkdir(parents=True, exist_ok=True)
    (node / str(os.getpid())).touch()
    options = parse_arguments(arguments)
    events = EventLog.from_environment(f"worker-{host}")
    Script(options, Core(os.environ, run, events), run, host, events).main()


if __name__ == "__main__":
    main(sys.argv[1:])
