"""Jobs of JAX and of TensorFlow: several processes on CPUs, started one by one, and a fake supervisor.

job = JaxJob(jax, tmp_path)
whole = await job.run_alone(600)
with job.supervised(600) as supervisor:
    await job.until_step(20)
    supervisor.agree(2)
"""

import asyncio
import json
import os
import re
import socket
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from kubeai.elastic.testing import FakeSupervisor

from simulator.cloud.process import CloudChild, end, environment, leftovers, spawn
from tests.frameworks.frameworks_losses import Curve, steps_of
from tests.frameworks.frameworks_world import RUN_SECONDS, example
from tests.testkit.waiting import until, wait_until

_LINE = re.compile(r"^rank (\d+) step \d+ loss (\S+)$", re.MULTILINE)
_CHECKOUT = Path(__file__).parents[2]
RESUME = 75


@dataclass(slots=True)
class ProcessesJob(ABC):
    """A job of an example, run after run, whose processes all write to one directory of checkpoints.

    Attributes:
        home: The environment that has the framework.
        root: Of everything that the job writes.
        step_seconds: Minimum duration of a step of a supervised run.
        agrees: Whether processes stop at one agreed step, or each as soon as it is told.
        cut_off: The rank that has no supervisor, if there is one.
        children: The processes of the present run, by rank.
    """

    home: Path
    root: Path
    step_seconds: float = 0.05
    agrees: bool = True
    cut_off: int | None = None
    children: list[CloudChild] = field(default_factory=list)
    _run: int = 0

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    async def run_alone(self, steps: int, processes: int = 2) -> Curve:
        """Run to the end without a supervisor; returns the losses of this run."""
        with self._running(steps, processes, Path(os.devnull), 0.0):
            assert await self.codes() == [0] * processes, self.tail()
        return self.curve()

    @contextmanager
    def supervised(self, steps: int, processes: int = 2) -> Iterator[FakeSupervisor]:
        """Start a run with a fake supervisor."""
        identity = self.root / f"identity-{self._run + 1}"
        identity.mkdir(parents=True)
        with FakeSupervisor() as supervisor:
            supervisor.write_identity(identity)
            with self._running(steps, processes, identity, self.step_seconds):
                yield supervisor

    async def until_step(self, step: int) -> None:
        """Wait until all processes have finished so many steps of the present run."""

        def finished() -> bool:
            for child in self.children:
                child.check()
            curve = self.curve()
            return len(curve) == len(self.children) and steps_of(curve) >= step

        await until(finished, self.tail, seconds=RUN_SECONDS, every=0.05)

    async def stop_after_a_save(self, steps: int, every: int) -> tuple[Curve, int]:
        """Stop two processes by an agreement, after the example has saved once; returns the losses and the step."""
        with self.supervised(steps) as supervisor:
            await self.until_step(every + 2)
            step = await asyncio.to_thread(supervisor.agree, 2, ahead=6)
            assert await self.codes() == [RESUME] * 2, self.tail()
            saved = [(report["rank"], report["step"]) for report in supervisor.reports_of("saved")]
        for rank in (0, 1):
            # A report may be sent again.
            mine = dict.fromkeys(saved_step for reporter, saved_step in saved if reporter == rank)
            assert list(mine) == [every, step], self.tail()
        return self.curve(), step

    async def end_without_agreement(self, steps: int, after: int) -> None:
        """Cut process 1 off, tell the other one to stop after so many steps, and end both when they go on.

        Nobody may save alone, as all have to, so both train on, until twenty steps later they are killed.
        """
        self.cut_off = 1
        with self.supervised(steps) as supervisor:
            await self.until_step(after)
            supervisor.propose(1)
            supervisor.direct(0, directive="STOP")
            saved = supervisor.reports_of("saved")
            await self.until_step(after + 20)
            for child in self.children:
                end(child.pid, self.root)
            assert supervisor.reports_of("saved") == saved, self.tail()
        self.cut_off = None

    async def codes(self, seconds: float = RUN_SECONDS) -> list[int]:
        """Wait for the end of all processes; returns their exit codes."""
        return [await child.wait(seconds) for child in self.children]

    def curve(self) -> Curve:
        """The losses of the present run."""
        found: Curve = {}
        for child in self.children:
            for rank, loss in _LINE.findall(child.log.read_text(encoding="utf-8")):
                found.setdefault(int(rank), []).append(loss)
        return found

    def files(self, pattern: str) -> set[str]:
        """The names of the files that the job has written anywhere and that fit a pattern."""
        return {path.name for path in self.root.rglob(pattern)}

    def tail(self) -> str:
        return "\n".join(child.tail() for child in self.children)

    @abstractmethod
    def _example(self) -> str:
        """The name of the example that each process runs."""

    @abstractmethod
    def _places(self, processes: int) -> list[dict[str, str]]:
        """The variables from which each process of the next run knows its place in it."""

    @contextmanager
    def _running(self, steps: int, processes: int, identity: Path, step_seconds: float) -> Iterator[None]:
        self._run += 1
        places = self._places(processes)
        process = str(Path(__file__).with_name("frameworks_one_process.py"))
        script = [str(example(self._example())), str(self.checkpoints), str(steps)]
        self.children = []
        try:
            for rank in range(processes):
                variables = {
                    "PYTHONPATH": os.pathsep.join([str(_CHECKOUT / "sdk"), str(_CHECKOUT)]),
                    "KUBEAI_DIR": os.devnull if rank == self.cut_off else str(identity),
                    "KUBEAI_EXIT_HOLD": "0",  # The fake supervisor releases nobody.
                    **places[rank],
                    "FRAMEWORKS_STEP_SECONDS": str(step_seconds),
                    **({} if self.agrees else {"FRAMEWORKS_DISAGREE": "1"}),
                }
                log = self.root / "logs" / f"run-{self._run}-rank-{rank}.log"
                command = [str(self.home / "bin" / "python"), process, *script]
                self.children.append(spawn(f"rank {rank}", command, environment(self.root, variables), log))
            yield
        finally:
            for left in leftovers(self.root):
                end(left.pid, self.root)
            wait_until(lambda: not any(child.running for child in self.children), "no process to be left")


class JaxJob(ProcessesJob):
    """A job of JAX, whose processes gloo connects."""

    __slots__ = ()

    def _example(self) -> str:
        return "jax_orbax.py"

    def _places(self, processes: int) -> list[dict[str, str]]:
        (coordinator,) = _free_addresses(1)
        place = {"COORDINATOR": coordinator, "PROCESSES": str(processes)}
        return [{**place, "PROCESS": str(rank)} for rank in range(processes)]


class TensorFlowJob(ProcessesJob):
    """A job of TensorFlow, whose workers know each other from TF_CONFIG as in a TFJob."""

    __slots__ = ()

    def _example(self) -> str:
        return "tensorflow_workers.py"

    def _places(self, processes: int) -> list[dict[str, str]]:
        cluster = {"worker": _free_addresses(processes)}
        # A worker that exits at once may take away the sum that another one is still fetching from it.
        hold = {"KUBEAI_EXIT_HOLD": "2"}
        tasks = [{"type": "worker", "index": index} for index in range(processes)]
        return [{"TF_CONFIG": json.dumps({"cluster": cluster, "task": task}), **hold} for task in tasks]


def _free_addresses(count: int) -> list[str]:
    with ExitStack() as stack:
        servers = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [f"127.0.0.1:{server.getsockname()[1]}" for server in servers]
