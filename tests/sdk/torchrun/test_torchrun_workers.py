"""The files between an agent and its workers, and the guard that ends workers whose agent was killed."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from kubeai.torchrun.member import RendezvousRound, RoundMember, RoundStoreAddress
from kubeai.torchrun.workers import DIRECTORY, JOINS, ROUND, Workers, WorkersProgress

from tests.sdk.sdk_scripts import SDK
from tests.testkit.waiting import wait_until

AGENT = """
import os, subprocess, sys, time
from pathlib import Path
from kubeai.torchrun import guard

directory = Path(sys.argv[1])
guard.start(directory)
os.environ["KUBEAI_RENDEZVOUS_DIR"] = str(directory)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
if len(sys.argv) == 2:
    time.sleep(600)
"""


@pytest.fixture
def workers() -> Iterator[Workers]:
    made = Workers(2)
    yield made
    shutil.rmtree(made.directory)


def test_workers_learn_their_place(workers: Workers) -> None:
    members = (RoundMember("m1", "n1", "10.0.0.1", 3), RoundMember("m2", "n2", "10.0.0.2", 2))
    workers.publish(RendezvousRound(4, members, in_process=True, store=RoundStoreAddress("10.0.0.1", 4000)), 1)
    content = json.loads((workers.directory / "round.json").read_text())
    assert content == {
        "number": 4,
        "in_process": True,
        "node": 1,
        "base_rank": 3,
        "world_size": 5,
        "members": [
            {"host": "n1", "address": "10.0.0.1", "processes": 3},
            {"host": "n2", "address": "10.0.0.2", "processes": 2},
        ],
        "store": {"address": "10.0.0.1", "port": 4000},
    }


def test_their_environment_names_directory_and_round(workers: Workers) -> None:
    plain = {DIRECTORY: str(workers.directory), ROUND: "3"}
    assert workers.environment(3, joins=False) == plain
    assert workers.environment(3, joins=True) == {**plain, JOINS: "1"}


def test_their_progress_is_that_of_the_slowest(workers: Workers) -> None:
    def says(rank: int, content: str) -> None:
        (workers.directory / f"worker-{rank}.json").write_text(content)

    assert workers.progress() == WorkersProgress()
    says(0, '{"pid": 1, "started": true, "round": 5}')
    assert workers.progress() == WorkersProgress()
    says(1, '{"pid": 2, "started": false, "round": 4}')
    assert workers.progress() == WorkersProgress(started=False, ready=4)
    says(1, '{"pid": 2, "started": true, "round": 5}')
    assert workers.progress() == WorkersProgress(started=True, ready=5)
    for garbage in ("", "[]", '{"round": null, "started": 1}', "\x00"):
        says(1, garbage)
        assert workers.progress() == WorkersProgress()
    workers.forget()
    assert not list(workers.directory.iterdir())


def agent(directory: Path, *arguments: str) -> tuple[subprocess.Popen[str], int]:
    command = [sys.executable, "-c", AGENT, str(directory), *arguments]
    process = subprocess.Popen(command, env={"PYTHONPATH": str(SDK)}, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout:
        return process, int(process.stdout.readline())


def is_running(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False


def test_the_workers_of_a_killed_agent_are_ended(tmp_path: Path) -> None:
    """They would go on in a round that is over."""
    directory = tmp_path / "private"
    directory.mkdir()
    process, worker = agent(directory)
    process.kill()
    process.wait()
    wait_until(lambda: not is_running(worker), "the worker to be ended")
    wait_until(lambda: not directory.exists(), "the directory to be removed")


def test_an_agent_that_exits_has_ended_its_workers_itself(tmp_path: Path) -> None:
    directory = tmp_path / "private"
    directory.mkdir()
    process, worker = agent(directory, "exits")
    assert process.wait(60) == 0
    wait_until(lambda: not directory.exists(), "the directory to be removed")
    assert is_running(worker)
    os.kill(worker, signal.SIGKILL)
