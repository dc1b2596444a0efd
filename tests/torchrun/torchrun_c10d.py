"""The same training under torchrun with its own backend `c10d`, to compare with.

Its store is in a process of its own, which survives everything: on an agent, that agent's death would end the job.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from simulator.cloud.process import CloudChild, environment, spawn
from tests.testkit.waiting import until
from tests.torchrun import torchrun_processes as processes
from tests.torchrun.torchrun_job import HOSTS, LEAST, TorchrunJob
from tests.torchrun.torchrun_processes import TorchrunTraining

_STORE = Path(__file__).with_name("torchrun_store.py")


@dataclass(slots=True, kw_only=True)
class C10d(TorchrunJob):
    """A job of four agents without a supervisor.

    Attributes:
        agents: The agents by host.
    """

    agents: dict[str, CloudChild]

    def check(self) -> None:
        assert any(child.running for child in self.agents.values()), self.tail()

    def tail(self) -> str:
        return "\n".join(child.tail() for child in self.agents.values())


@asynccontextmanager
async def c10d(root: Path, training: TorchrunTraining) -> AsyncIterator[C10d]:
    """Start a job of four hosts. At the end all of its processes are killed."""
    # c10d hangs at its second rendezvous if workers share its store.
    variables = {**training.environment(), "KUBEAI_DIR": "/dev/null", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    port = root / "port"
    started: list[CloudChild] = []

    def start(name: str, command: list[str], **more: str) -> CloudChild:
        child = spawn(name, command, environment(root, {**variables, **more}), root / "logs" / f"{name}.log")
        started.append(child)
        return child

    try:
        store = start("store", [str(training.torch.home / "bin" / "python"), str(_STORE), str(port)])
        await until(port.exists, store.tail, every=0.1)
        where = ("--rdzv-endpoint", f"127.0.0.1:{port.read_text(encoding='ascii')}", "--rdzv-conf", "is_host=0")
        rendezvous = ("--rdzv-backend", "c10d", "--rdzv-id", "train", "--nnodes", f"{LEAST}:{len(HOSTS)}")
        torchrun = training.torchrun(*rendezvous, *where)
        agents = {host: start(host, torchrun, KUBEAI_HOST=host) for host in HOSTS}
        yield C10d(root, training, agents=agents)
    finally:
        # An agent that is being ended may be starting a worker.
        await until(lambda: not processes.killed(root), "no process to be left", every=0.1)
        for child in started:
            await child.kill()
