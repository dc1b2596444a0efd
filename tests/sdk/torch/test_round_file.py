"""What elastic agent and training process say to each other in files, each side with its own code."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from kubeai.torch.decisions import RoundFile, RoundHost, WorkerRound
from kubeai.torchrun.member import FollowingRound, RoundMember, RoundStoreAddress
from kubeai.torchrun.member import RendezvousRound as AgentsRound
from kubeai.torchrun.workers import Workers, WorkersProgress


@pytest.fixture
def workers() -> Iterator[Workers]:
    made = Workers(processes=1)
    yield made
    shutil.rmtree(made.directory)


@pytest.fixture
def file(workers: Workers) -> RoundFile:
    found = RoundFile.from_environment({**workers.environment(4, joins=True), "LOCAL_RANK": "0"})
    assert found is not None
    return found


def _round(number: int) -> AgentsRound:
    members = tuple(RoundMember(f"id{each}", f"node{each}", f"node{each}:1", 1) for each in range(2))
    return AgentsRound(number, members, in_process=True, store=RoundStoreAddress("node0", 29500))


def _publish(workers: Workers, number: int) -> None:
    workers.publish(_round(number), 1)


def test_a_process_reads_the_round_that_its_agent_has_written(workers: Workers, file: RoundFile) -> None:
    assert file.newest() is None
    for number in (5, 6):
        _publish(workers, number)
        hosts = RoundHost("node0:1", 1), RoundHost("node1:1", 1)
        assert file.newest() == WorkerRound(
            number, in_process=True, base_rank=1, world_size=2, address="node0", port=29500, hosts=hosts
        )


def test_a_round_that_was_foretold_equals_the_same_one_once_it_is_decided(workers: Workers, file: RoundFile) -> None:
    assert file.following() is None
    workers.foretell(FollowingRound(4, _round(5)), 1)
    _publish(workers, 5)
    foretold = file.following()
    assert foretold is not None
    assert (foretold.epoch, foretold.round) == (4, file.newest())


def test_a_malformed_file_leaves_the_last_round(workers: Workers, file: RoundFile) -> None:
    _publish(workers, 5)
    before = file.newest()
    for malformed in ("", "[]", "{}", json.dumps({"number": "x", "store": None})):
        (workers.directory / "round.json").write_text(malformed, encoding="utf-8")
        assert file.newest() == before


def test_an_agent_reads_what_its_process_says(workers: Workers, file: RoundFile) -> None:
    file.say(0, started=True)
    assert workers.progress() == WorkersProgress(started=True, ready=0)
    file.say(5, started=True)
    assert workers.progress() == WorkersProgress(started=True, ready=5)
    assert json.loads((workers.directory / "worker-0.json").read_text(encoding="utf-8"))["pid"] == os.getpid()


def test_the_environment_names_the_round_that_a_process_was_started_in(file: RoundFile) -> None:
    assert (file.started_in, file.joins) == (4, True)


def test_under_another_backend_there_is_no_file(tmp_path: Path) -> None:
    assert RoundFile.from_environment({"LOCAL_RANK": "0", "HOME": str(tmp_path)}) is None
