"""The demo job: ``python -m simulator.job``, a training script like those that users write.

It trains data-parallel under ``simulator.elastic.launcher``, or alone. Before every batch it asks the SDK whether it
may
continue. If not, rank 0 saves a checkpoint, and every process that was told exits with 255. The ranks exchange
gradients
only, never the flag. It writes what it does to the event log for the judge.
"""

import argparse
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import NoReturn

import kubeai.elastic as kubeai
import numpy as np
from numpy.typing import NDArray

from simulator import checkpoint
from simulator.elastic import client as elastic
from simulator.events import EventLog, JobEventKind
from simulator.model import Task, digest, reference, shards_of

__all__ = ["JobFault", "JobOptions", "JobScript", "main", "parse_arguments", "reference"]

# Horovod advises against a commit in every step, because it copies the whole state. A host that dies in the ring costs
# the steps since the last commit.
COMMIT_EVERY = 10


class JobFault(StrEnum):
    """Deliberate damage, to show that the judge notices it."""

    SKIP_UPDATE = "skip-update"
    """One step is reported as applied, but its update is skipped."""
    CORRUPT_SHARD = "corrupt-shard"
    """One shard's gradient is off by one unit of its fixed point in one element."""
    DIE_UNSAVED = "die-unsaved"
    """At a STOP the process dies without a checkpoint or an acknowledgement."""


@dataclass(frozen=True, slots=True)
class JobOptions:
    steps: int
    step_seconds: float
    checkpoint: Path
    checkpoint_every: int
    commit_every: int
    task: Task
    fault: JobFault | None
    fault_step: int
    say_steps: bool
    agree: bool


@dataclass(frozen=True, slots=True)
class JobScript:
    """One process of the job."""

    options: JobOptions
    run: int
    host: str
    events: EventLog

    def main(self) -> None:
        """Join, load the checkpoint and train to the last step. Exits the process when the SDK says so."""
        elastic.init()
        kubeai.init(rank=elastic.rank)
        kubeai.on_notice(self._notice)
        state = elastic.ElasticState(self.options.task.first_params())
        if elastic.rank() == 0:
            self._load(state)
        elastic.run(state, self._train)
        self.events.write(
            JobEventKind.JOB_FINISHED, run=self.run, step=state.step, digest=digest(state.params, state.step)
        )

    def _train(self, state: elastic.ElasticState) -> None:
        while state.step < self.options.steps:
            if self._must_leave(state):
                self._leave(state)
            self._step(state)
            if self.options.checkpoint_every and state.step % self.options.checkpoint_every == 0:
                self._save(state)
            if state.step % self.options.commit_every == 0:
                state.commit()
            else:
                state.check_host_updates()

    def _must_leave(self, state: elastic.ElasticState) -> bool:
        if self.options.agree:
            return kubeai.should_stop(state.step)
        return kubeai.check_alive() == False  # noqa: E712 - as users write it

    def _step(self, state: elastic.ElasticState) -> None:
        begun = time.monotonic()
        step = state.step + 1
        gradient = self._gradient(state, step)
        time.sleep(max(0.0, begun + self.options.step_seconds - time.monotonic()))
        gradient = elastic.allreduce(gradient)
        if not self._fails(JobFault.SKIP_UPDATE, step):
            state.params = self.options.task.updated(state.params, gradient)
        state.step = step
        self.events.write(
            JobEventKind.STEP_APPLIED,
            run=self.run,
            epoch=elastic.epoch(),
            step=step,
            rank=elastic.rank(),
            host=self.host,
            digest=digest(state.params, step),
        )

    def _gradient(self, state: elastic.ElasticState, step: int) -> NDArray[np.int64]:
        task = self.options.task
        shards = shards_of(elastic.rank(), elastic.size(), task.shards)
        gradient = task.gradient(state.params, step, shards)
        if 0 in shards and self._fails(JobFault.CORRUPT_SHARD, step):
            gradient[0] += 1
        return gradient

    def _fails(self, fault: JobFault, step: int) -> bool:
        return self.options.fault is fault and self.options.fault_step == step

    def _leave(self, state: elastic.ElasticState) -> NoReturn:
        directive = kubeai.directive().kind.value
        rank = elastic.rank()
        self.events.write(
            JobEventKind.FLAG_SEEN, run=self.run, host=self.host, rank=rank, directive=directive, step=state.step
        )
        if self.options.fault is JobFault.DIE_UNSAVED:
            os.kill(os.getpid(), signal.SIGKILL)
        self._save(state)
        sys.exit(-1)

    def _load(self, state: elastic.ElasticState) -> None:
        if (saved := checkpoint.load(self.options.checkpoint)) is not None:
            state.params, state.step = saved
            self.events.write(JobEventKind.CHECKPOINT_LOADED, run=self.run, step=state.step)
            self._report_saved(state)

    def _save(self, state: elastic.ElasticState) -> None:
        """Save in rank 0, but never replace a newer checkpoint with an older state.

        The host of a rank 0 that has saved may be gone before the others are told to stop. The next rank 0 has returned
        to its
        last commit by then.
        """
        if (rank := elastic.rank()) != 0:
            if self.options.agree:
                self._save_shard(state, rank)
            return
        saved = checkpoint.load(self.options.checkpoint)
        if saved is None or saved[1] <= state.step:
            checkpoint.save(self.options.checkpoint, state.params, state.step)
            self.events.write(JobEventKind.CHECKPOINT_SAVED, run=self.run, step=state.step, rank=rank, host=self.host)
            self._report_saved(state)

    def _save_shard(self, state: elastic.ElasticState, rank: int) -> None:
        """Save in another rank at an agreed step, as in a checkpoint of which each rank writes a part."""
        checkpoint.save(self.options.checkpoint.with_name(f"checkpoint-{rank}"), state.params, state.step)
        self.events.write(JobEventKind.CHECKPOINT_SAVED, run=self.run, step=state.step, rank=rank, host=self.host)

    def _report_saved(self, state: elastic.ElasticState) -> None:
        if self.options.say_steps:
            kubeai.checkpoint_saved(state.step)

    def _notice(self, notice: kubeai.Notice) -> None:
        self.events.write(
            JobEventKind.NOTICE_SEEN,
            run=self.run,
            host=self.host,
            rank=elastic.rank(),
            notice=notice.id,
            subject=notice.host,
        )


def parse_arguments(arguments: Sequence[str]) -> JobOptions:
    """Parse the command line. Exits the process with a message if it is invalid."""
    parser = argparse.ArgumentParser(prog="python -m simulator.job", description="A training job that can be judged.")
    option = partial(parser.add_argument, metavar="N")
    option("--steps", type=int, required=True, help="number of training steps")
    option("--step-seconds", type=float, default=0.1, help="minimum duration of a step (default 0.1)")
    parser.add_argument("--checkpoint", type=Path, required=True, help="checkpoint file, loaded at the start")
    option("--checkpoint-every", type=int, default=0, help="save a checkpoint every N steps (default 0: never)")
    option(
        "--commit-every",
        type=int,
        default=COMMIT_EVERY,
        help="steps between commits, which a broken ring loses at most (default 10)",
    )
    parser.add_argument("--say-steps", action="store_true", help="report the step of each checkpoint to the supervisor")
    parser.add_argument("--agree", action="store_true", help="all ranks stop after the same step")
    option("--shards", type=int, default=48, help="number of shards of a global batch (default 48)")
    option("--seed", type=int, default=1, help="seed of the data and the initial parameters (default 1)")
    parser.add_argument(
        "--fault", type=JobFault, choices=list(JobFault), help="damage one step; the judge must notice it"
    )
    option("--fault-step", type=int, help="the damaged step (default: the middle one)")
    parsed = parser.parse_args(arguments)
    return JobOptions(
        steps=parsed.steps,
        step_seconds=parsed.step_seconds,
        checkpoint=parsed.checkpoint,
        checkpoint_every=parsed.checkpoint_every,
        commit_every=parsed.commit_every,
        task=Task(parsed.seed, parsed.shards),
        fault=parsed.fault,
        fault_step=parsed.steps // 2 if parsed.fault_step is None else parsed.fault_step,
        say_steps=parsed.say_steps,
        agree=parsed.agree,
    )


def main(arguments: Sequence[str]) -> None:
    host = os.environ.get("HOROVOD_HOSTNAME") or socket.gethostname()
    events = EventLog.from_environment(f"worker-{host}")
    JobScript(parse_arguments(arguments), int(os.environ.get("KUBEAI_RUN", "1")), host, events).main()


if __name__ == "__main__":
    main(sys.argv[1:])
