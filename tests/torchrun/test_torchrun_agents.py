"""Elastic agents of the real torchrun, with a fake coordinator."""

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from kubeai.torchrun.testing import FakeCoordinator

from simulator.cloud.process import CloudChild, environment, spawn
from tests.testkit.waiting import wait_until
from tests.torchrun import torchrun_processes as processes
from tests.torchrun.conftest import NEWER, OLDER
from tests.torchrun.torchrun_job import SECONDS
from tests.torchrun.torchrun_processes import Torch, TorchrunTraining

pytestmark = [pytest.mark.long, pytest.mark.parametrize("torch", [NEWER, OLDER], indirect=True)]

_HERE = Path(__file__).parent


class Agents:
    """Agents that are configured by variables alone, as PyTorchJob does it, with one worker each."""

    def __init__(self, training: TorchrunTraining, coordinator: FakeCoordinator) -> None:
        self.root = training.directory
        self.end = training.directory / "end"
        self._training = training
        identity = training.directory / "identity"
        identity.mkdir()
        coordinator.write_identity(identity)
        self._variables = {
            **training.environment(),
            "KUBEAI_DIR": str(identity),
            "PET_RDZV_BACKEND": "kubeai",
            "PET_RDZV_ENDPOINT": "worker-0:23456",
            "PET_NNODES": "1:3",
            "PET_MAX_RESTARTS": "3",
            "PET_NPROC_PER_NODE": "1",
        }

    def start(self, host: str) -> CloudChild:
        program = [str(self._training.torch.home / "bin" / "python"), "-m", "torch.distributed.run"]
        in_process = [str(_HERE / "torchrun_in_process.py"), "ddp", str(self.root)]
        waiting = [str(_HERE / "torchrun_waiting.py"), str(self.end)]
        command = [*program, *(in_process if self._training.in_process else waiting)]
        variables = environment(self.root, {**self._variables, "KUBEAI_HOST": host})
        return spawn(host, command, variables, self.root / f"{host}.log")

    def ended(self, child: CloudChild) -> int:
        wait_until(lambda: not child.running, child.tail, seconds=SECONDS)
        assert child.exit_code is not None
        return child.exit_code


@contextmanager
def started(training: TorchrunTraining) -> Iterator[tuple[Agents, FakeCoordinator]]:
    with FakeCoordinator() as coordinator:
        agents = Agents(training, coordinator)
        try:
            yield agents, coordinator
        finally:
            wait_until(lambda: not processes.killed(agents.root), "no process to be left")


@pytest.mark.brief
def test_a_parked_agent_trains_again_and_is_released_at_the_end(torch: Torch, directory: Path) -> None:
    with started(TorchrunTraining(torch, directory)) as (agents, coordinator):
        first, second = agents.start("node1"), agents.start("node2")
        coordinator.form("node1", "node2", seconds=SECONDS)
        wait_until(lambda: processes.workers(agents.root, "node2"), second.tail, seconds=SECONDS)
        coordinator.decide("node1")
        wait_until(lambda: not processes.workers(agents.root, "node2"), second.tail, seconds=SECONDS)
        assert second.running
        coordinator.form("node1", "node2", seconds=SECONDS)
        wait_until(lambda: processes.workers(agents.root, "node2"), second.tail, seconds=SECONDS)
        coordinator.decide("node1")
        coordinator.wait_for(lambda: coordinator.members["node2"]["waits"], SECONDS)
        agents.end.touch()
        assert agents.ended(first) == 0
        assert any(report.body["state"].get("ended") for report in coordinator.reports if "state" in report.body)
        coordinator.release(3)
        assert agents.ended(second) == 3


def test_agents_go_on_without_a_supervisor_after_a_loss(torch: Torch, directory: Path) -> None:
    """Also if the lost one held the store. The supervisor hears of the round when it is back."""
    with started(TorchrunTraining(torch, directory)) as (agents, coordinator):
        first, second = agents.start("node1"), agents.start("node2")
        coordinator.form("node1", "node2", seconds=SECONDS)
        wait_until(lambda: processes.workers(agents.root, "node2"), second.tail, seconds=SECONDS)
        wait_until(lambda: all(agents.end.with_name(f"trains-{rank}").exists() for rank in (0, 1)), seconds=SECONDS)
        coordinator.stop()
        processes.send([first.pid], signal.SIGKILL)
        assert agents.ended(first) == -signal.SIGKILL
        wait_until(lambda: "the members form round 2" in second.tail(), second.tail, seconds=SECONDS)
        coordinator.start()
        known = {"number": 2, "hosts": ["node2"], "in_process": False}
        coordinator.wait_for(lambda: coordinator.members.get("node2", {}).get("known") == known, SECONDS)
        agents.end.touch()
        assert agents.ended(second) == 0


def test_agents_go_on_in_process_without_a_supervisor_after_a_loss(torch: Torch, directory: Path) -> None:
    """The survivors have all state: no process of theirs is restarted, and no step is repeated."""
    with started(TorchrunTraining(torch, directory, in_process=True, step_seconds=0.2)) as (agents, coordinator):
        hosts = ("node1", "node2", "node3")
        children = {host: agents.start(host) for host in hosts}
        coordinator.form(*hosts, seconds=SECONDS)
        wait_until(partial(_has_trained_with, 3, directory, "node3"), children["node3"].tail, seconds=SECONDS)
        coordinator.stop()
        lost = children.pop("node1")
        processes.send([lost.pid], signal.SIGKILL)
        assert agents.ended(lost) == -signal.SIGKILL
        for host, child in children.items():
            wait_until(partial(_has_trained_with, 2, directory, host), child.tail, seconds=SECONDS)
            assert "the members form round 2, in process" in child.tail()
        coordinator.start()
        known = {"number": 2, "hosts": ["node2", "node3"], "in_process": True}
        coordinator.wait_for(lambda: coordinator.members.get("node3", {}).get("known") == known, SECONDS)
        agents.end.touch()
        assert [agents.ended(child) for child in children.values()] == [0, 0]
        for host in children:
            (records,) = directory.glob(f"steps-{host}-*.jsonl")
            steps = [json.loads(line) for line in records.read_text(encoding="ascii").splitlines()]
            repeated = [each["step"] for each in steps if each["world"] == 2]
            assert len(repeated) == len(set(repeated))


def _has_trained_with(ranks: int, directory: Path, host: str) -> bool:
    """Whether a host has recorded a step of so many ranks."""
    records = [path.read_text(encoding="ascii") for path in directory.glob(f"steps-{host}-*.jsonl")]
    return any(f'"world": {ranks},' in each for each in records)


def test_standalone_is_refused(torch: Torch, directory: Path) -> None:
    """Torchrun would use c10d without a word."""
    training = TorchrunTraining(torch, directory)
    program = [str(torch.home / "bin" / "python"), "-m", "torch.distributed.run"]
    command = [*program, "--standalone", "--rdzv-backend", "kubeai", str(_HERE / "torchrun_waiting.py"), "end"]
    variables = environment(directory, training.environment())
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 1
    assert "--standalone (or PET_STANDALONE)" in done.stderr


def test_agents_do_not_wait_at_their_end_for_one_that_left_in_process(torch: Torch, directory: Path) -> None:
    """Torch counts them under keys of its own, which another version may change."""
    command = [str(torch.home / "bin" / "python"), str(_HERE / "torchrun_end.py")]
    variables = environment(directory, TorchrunTraining(torch, directory).environment())
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert (done.returncode, done.stdout) == (0, "ended\nended\n"), done.stderr
