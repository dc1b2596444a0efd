"""What a training process does between two rounds."""

import pytest
from kubeai.torch.decisions import (
    NO_STATE,
    Move,
    NotFormed,
    WorkerRound,
    is_lost_rank,
    is_newer,
    next_move,
    processes_of_hosts,
    source_of,
)


def _round(number: int, *, in_process: bool = True) -> WorkerRound:
    return WorkerRound(number, in_process, base_rank=0, world_size=2, address="node1", port=1)


@pytest.mark.parametrize(("expired", "is_whole"), [(False, False), (False, True), (True, False), (True, True)])
def test_a_newer_round_in_process_is_entered_at_any_time(expired: bool, is_whole: bool) -> None:  # noqa: FBT001
    assert next_move(_round(3), 2, expired=expired, is_whole=is_whole) is Move.ENTER


@pytest.mark.parametrize("newest", [None, _round(2), _round(3, in_process=False)])
def test_it_waits_for_a_round_until_its_time_is_up(newest: WorkerRound | None) -> None:
    assert next_move(newest, 2, expired=False, is_whole=True) is Move.WAIT
    assert next_move(newest, 2, expired=True, is_whole=False) is Move.GIVE_UP


def test_after_an_announced_round_that_never_came_it_goes_on() -> None:
    assert next_move(_round(2), 2, expired=True, is_whole=True) is Move.GO_ON


def test_it_does_not_go_on_if_its_agent_has_restarted_the_others() -> None:
    assert next_move(_round(3, in_process=False), 2, expired=True, is_whole=True) is Move.GIVE_UP


def test_only_a_later_round_in_process_is_newer() -> None:
    assert is_newer(_round(3), 2)
    assert not is_newer(_round(2), 2)
    assert not is_newer(_round(3, in_process=False), 2)
    assert not is_newer(None, 0)


@pytest.mark.parametrize(
    ("steps", "source"),
    [
        ([5, 5, 5], None),
        ([5, 5, NO_STATE], 0),
        ([NO_STATE, 5], 1),
        ([5, 6, 6], 1),
        ([NO_STATE, NO_STATE], None),
    ],
)
def test_the_first_rank_with_the_most_steps_is_the_source(steps: list[int], source: int | None) -> None:
    assert source_of(steps) == source


def _caused_by(cause: BaseException) -> RuntimeError:
    error = RuntimeError("the checkpoint of step 7")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (NotFormed("a newer round has come"), True),
        (RuntimeError("[gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]:4000"), True),
        (_caused_by(RuntimeError("[gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 30000ms")), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied (2x3 and 2x3)"), False),
        (RuntimeError("[enforce fail at inline_container.cc:664] . unexpected pos 64 vs 0"), False),
        (_caused_by(OSError("No space left on device")), False),
    ],
)
def test_only_a_failed_collective_is_a_lost_rank(error: RuntimeError, *, expected: bool) -> None:
    """Other RuntimeErrors are the script's own."""
    assert is_lost_rank(error) is expected


@pytest.mark.parametrize(
    ("hosts", "processes"), [([0, 0, 1, 1], (2, 2)), ([0, 1, 1, 1, 2], (1, 3, 1)), ([0, 0, 0], (3,)), ([0], (1,))]
)
def test_ranks_with_the_number_of_one_host_are_counted_together(hosts: list[int], processes: tuple[int, ...]) -> None:
    assert processes_of_hosts(hosts) == processes
