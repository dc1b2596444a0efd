"""Jobs of JAX: several processes on CPUs that gloo connects, and a fake supervisor.

job = JaxJob(jax, tmp_path)
whole = await job.run_alone(600)
with job.supervised(600) as supervisor:
    await job.until_step(20)
    supervisor.agree(2)
"""

import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from kubeai.elastic.testing import FakeSupervisor

from simulator.cloud.process import CloudChild, end, environment, leftovers, spawn
from tests.frameworks.frameworks_losses import Curve, steps_of
from tests.frameworks.frameworks_world import RUN_SECONDS, example
from tests.testkit.waiting import until, wait_until

_LINE = re.compile(r"^rank (\d+) step \d+ loss (\S+)$", re.MULTILINE)
_CHECKOUT = Path(__file__).parents[2]


@dataclass(slots=True)
class JaxJob:
    """A job of the example, run after run, whose processes all write to one directory of checkpoints.

    Attributes:
        home: The environment that has JAX.
        root: Of everything that the job writes.
        step_seconds: Minimum duration of a step of a supervised run.
        agrees: Whether processes stop at one agreed step, or each as soon as it is told.
        children: The processes of the present run, by rank.
    """

    home: Path
    root: Path
    step_seconds: float = 0.05
    agrees: bool = True
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

    def tail(self) -> str:
        return "\n".join(child.tail() for child in self.children)

    @contextmanager
    def _running(self, steps: int, processes: int, identity: Path, step_seconds: float) -> Iterator[None]:
        self._run += 1
        coordinator = f"127.0.0.1:{_free_port()}"
        process = str(Path(__file__).with_name("frameworks_jax_process.py"))
        script = [str(example("jax_orbax.py")), str(self.checkpoints), str(steps)]
        self.children = []
        try:
            for rank in range(processes):
                variables = {
                    "PYTHONPATH": os.pathsep.join([str(_CHECKOUT / "sdk"), str(_CHECKOUT)]),
                    "KUBEAI_DIR": str(identity),
                    "KUBEAI_EXIT_HOLD": "0",  # The fake supervisor releases nobody.
                    "COORDINATOR": coordinator,
                    "PROCESSES": str(processes),
                    "PROCESS": str(rank),
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


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port
