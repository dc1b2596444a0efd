"""All ranks of a round take the same answer to what follows, whenever each of them is told."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from kubeai.torch.decisions import NotFormed, RoundFile, RoundHost, WorkerRound
from kubeai.torch.following import agreed_hosts
from kubeai.torchrun.member import RendezvousRound, RoundMember, RoundStoreAddress
from kubeai.torchrun.workers import Workers

_SOON = 0.0
_LATER = 60.0
_PRESENT = WorkerRound(5, in_process=True, base_rank=0, world_size=4, address="node0", port=1)


@dataclass
class _Store:
    """As TCPStore: the first value of a key that was empty stays."""

    values: dict[str, str] = field(default_factory=dict)

    def check(self, keys: list[str]) -> bool:
        return all(key in self.values for key in keys)

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        if self.values.get(key, "") == expected:
            self.values[key] = desired
        return self.values[key].encode()


@pytest.fixture
def workers() -> Iterator[Workers]:
    made = Workers(processes=1)
    yield made
    shutil.rmtree(made.directory)


def _told(workers: Workers, number: int, *names: str, in_process: bool = True) -> RoundFile:
    """What a worker of this agent reads after its agent was told of a round."""
    members = tuple(RoundMember(name, name, f"{name}:1", 2) for name in names)
    workers.publish(RendezvousRound(number, members, in_process, RoundStoreAddress("node0", 1)), 0)
    file = RoundFile.from_environment(workers.environment(5, joins=False))
    assert file is not None
    return file


def _hosts(*names: str) -> tuple[RoundHost, ...]:
    return tuple(RoundHost(f"{name}:1", 2) for name in names)


def test_the_first_that_is_told_of_a_round_answers_for_those_that_are_not(workers: Workers) -> None:
    store = _Store()
    assert agreed_hosts(store, 30, _told(workers, 6, "a", "c"), _PRESENT) == _hosts("a", "c")
    assert agreed_hosts(store, 30, _told(workers, 5, "a", "b", "c"), _PRESENT, patience=_LATER) == _hosts("a", "c")


def test_whoever_is_told_later_follows_the_first_answer(workers: Workers) -> None:
    store = _Store()
    agreed_hosts(store, 30, _told(workers, 6, "a", "c"), _PRESENT)
    assert agreed_hosts(store, 30, _told(workers, 7, "a"), _PRESENT) == _hosts("a", "c")


@pytest.mark.parametrize(("number", "in_process"), [(5, True), (6, False)])
def test_without_a_next_round_in_process_all_go_through_a_checkpoint(
    workers: Workers,
    number: int,
    in_process: bool,  # noqa: FBT001
) -> None:
    store = _Store()
    assert agreed_hosts(store, 30, _told(workers, number, "a", in_process=in_process), _PRESENT, patience=_SOON) is None
    assert agreed_hosts(store, 30, _told(workers, 6, "a"), _PRESENT) is None


def test_each_step_has_an_answer_of_its_own(workers: Workers) -> None:
    store = _Store()
    agreed_hosts(store, 30, _told(workers, 5, "a"), _PRESENT, patience=_SOON)
    assert agreed_hosts(store, 31, _told(workers, 6, "a"), _PRESENT) == _hosts("a")


@pytest.mark.parametrize("answer", ["", "[", "{}1", json.dumps([1]), json.dumps([{"address": "a"}])])
def test_a_malformed_answer_is_no_round(workers: Workers, answer: str) -> None:
    store = _Store({"follows/30": answer or " "})
    with pytest.raises(NotFormed):
        agreed_hosts(store, 30, _told(workers, 5, "a"), _PRESENT, patience=_LATER)
