"""The launcher of the sample job: one training process on each host that kubeai-discover-hosts lists.

    python -m kubeai.elastic.sample.launcher --checkpoint FILE --progress DIRECTORY

All hosts are this machine. A host that leaves the list loses its process between two steps, and the others continue; a
new host gets a process. If a process fails, the launcher ends with 1, and kubeai-run starts the next run from the
checkpoint. Progress is the file ``run-N.json`` in the directory, replaced after each step.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Mapping

from kubeai.elastic import identity, threads
from kubeai.elastic.threads import StderrLog

from .model import Gradient, State, advanced, state_of

_DISCOVERY = (sys.executable, "-m", "kubeai.elastic.commands.discover_hosts")
_TRAINING = (sys.executable, "-m", "kubeai.elastic.sample.training")
_WITH_PARENT = (sys.executable, "-m", "kubeai.elastic.commands.die_with_parent")
_DISCOVERY_SECONDS = 1.0
_LOG_SECONDS = 5.0


class ProcessFailed(Exception):  # noqa: N818 - the name describes what happened.
    """A training process ended in the middle of a step."""


class SampleWorker:
    """One training process."""

    def __init__(self, host: str, checkpoint: Path) -> None:
        self.host = host
        self.process = subprocess.Popen(  # noqa: S603 - our own command.
            (*_WITH_PARENT, str(os.getpid()), *_TRAINING, str(checkpoint)),
            env={**os.environ, "KUBEAI_HOST": host},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            encoding="utf-8",
        )

    def send(self, rank: int, state: State | None) -> None:
        """Send a task."""
        if self.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # The missing answer says so.
                task = {"rank": rank, "state": None if state is None else state.fields()}
                self.process.stdin.write(json.dumps(task) + "\n")
                self.process.stdin.flush()

    def receive(self) -> Mapping[str, Any]:
        """Wait for the answer.

        Raises:
            ProcessFailed: The process has ended instead.
        """
        line = self.process.stdout.readline() if self.process.stdout is not None else ""
        if not line.endswith("\n"):
            raise ProcessFailed(f"the process on {self.host} ended with {self.process.wait()}")
        answer: Mapping[str, Any] = json.loads(line)
        return answer


class SampleLauncher:
    """Trains step by step with the processes of the present hosts."""

    def __init__(self, given: argparse.Namespace, run: int) -> None:
        self._given = given
        self._file = given.progress / f"run-{run}.json"
        self._hosts: tuple[str, ...] = ()  # that the job may use now
        self._workers: dict[str, SampleWorker] = {}
        self._logged_at = 0.0

    def train(self) -> None:
        """Train until all steps are done."""
        threads.start("hosts", self._follow_hosts, StderrLog())
        self._await_hosts()
        rank_zero = next(iter(self._workers.values()))
        rank_zero.send(0, None)  # asks for the checkpoint
        first = state = state_of(rank_zero.receive())
        while state.step < self._given.steps:
            begun = time.monotonic()
            self._await_hosts()
            workers = list(self._workers.values())
            for rank, worker in enumerate(workers):
                worker.send(rank, state)
            answers = [worker.receive() for worker in workers]
            gradients = [Gradient(tuple(answer["gradient"]), answer["loss"]) for answer in answers]
            state = advanced(state, gradients)
            loss = sum(one.loss for one in gradients) / len(gradients)
            progress = {"first_step": first.step, "step": state.step, "loss": loss, "hosts": sorted(self._workers)}
            identity.write_atomically(self._file, json.dumps(progress))
            if time.monotonic() - self._logged_at >= _LOG_SECONDS:
                self._logged_at = time.monotonic()
                _log(f"step {state.step}: loss {loss:.4f} on {len(self._workers)} hosts")
            time.sleep(max(0.0, self._given.step_seconds - (time.monotonic() - begun)))
        for worker in self._workers.values():
            worker.process.communicate()

    def _follow_hosts(self) -> None:
        """Ask every second, as Horovod does, for the hosts that the job may use.

        The script always answers, with the last good list if it must.
        """
        while True:
            asked = subprocess.run(_DISCOVERY, stdout=subprocess.PIPE, check=True)  # noqa: S603 - our own command.
            self._hosts = tuple(line.split(":")[0] for line in asked.stdout.decode().split())
            time.sleep(_DISCOVERY_SECONDS)

    def _await_hosts(self) -> None:
        """Wait until there is a host, end the processes of those that have left, and start those of new ones."""
        while not self._hosts:
            time.sleep(_DISCOVERY_SECONDS / 10)
        names = self._hosts
        for host in [host for host in self._workers if host not in names]:
            self._workers.pop(host).process.communicate()  # it ends, as it is between two steps
        for host in names:
            if host not in self._workers:
                self._workers[host] = SampleWorker(host, self._given.checkpoint)


def main() -> int:
    """Run the job and return the exit code."""
    given = _parser().parse_args()
    given.progress.mkdir(parents=True, exist_ok=True)
    try:
        SampleLauncher(given, int(os.environ.get("KUBEAI_RUN", "1"))).train()
    except ProcessFailed as failed:
        _log(str(failed))
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m kubeai.elastic.sample.launcher", description="A small elastic job to try the supervisor with."
    )
    parser.add_argument("--checkpoint", type=Path, required=True, metavar="FILE", help="loaded at the start, if any")
    parser.add_argument("--progress", type=Path, required=True, metavar="DIRECTORY", help="gets a file for each run")
    parser.add_argument("--steps", type=int, default=1_000_000, metavar="N", help="steps to train [1000000]")
    parser.add_argument("--step-seconds", type=float, default=0.1, metavar="S", help="least time for a step [0.1]")
    return parser


def _log(text: str) -> None:
    sys.stderr.write(f"sample job: {text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
