import pytest

from supervisor.ingest.agents import Liveness, LivenessVerdict


def turns(
    liveness: Liveness, count: int, *, is_writing: bool = False, is_reading: bool = True, is_awaited: bool = False
) -> list[LivenessVerdict]:
    return [liveness.turn(is_writing=is_writing, is_reading=is_reading, is_awaited=is_awaited) for _ in range(count)]


@pytest.mark.parametrize("interval", [1, 4])
def test_a_heartbeat_is_due_once_in_an_interval(interval: int) -> None:
    liveness = Liveness(interval)
    for _ in range(5):
        assert turns(liveness, interval) == [*[LivenessVerdict.FINE] * (interval - 1), LivenessVerdict.HEARTBEAT_DUE]
        liveness.heard()
        liveness.written()


def test_anything_that_is_written_takes_the_place_of_a_heartbeat() -> None:
    liveness = Liveness(4)
    turns(liveness, 3)
    liveness.written()
    assert turns(liveness, 4)[-1] is LivenessVerdict.HEARTBEAT_DUE


def test_a_peer_that_waits_for_an_answer_has_a_heartbeat_each_turn() -> None:
    """Whatever is written meanwhile, except where that very write waits."""
    liveness = Liveness(60)
    for _ in range(3):
        assert turns(liveness, 1, is_reading=False, is_awaited=True) == [LivenessVerdict.HEARTBEAT_DUE]
        liveness.written()
    assert turns(liveness, 1, is_writing=True, is_awaited=True) == [LivenessVerdict.FINE]
    liveness.written()
    assert turns(liveness, 59) == [LivenessVerdict.FINE] * 59


@pytest.mark.parametrize("interval", [1, 4])
def test_three_intervals_without_a_message_are_silence(interval: int) -> None:
    liveness = Liveness(interval)
    turns(liveness, 3 * interval - 1)
    liveness.heard()
    assert LivenessVerdict.SILENT not in turns(liveness, 3 * interval - 1)
    assert turns(liveness, 1) == [LivenessVerdict.SILENT]


def test_turns_in_which_nothing_is_read_are_no_silence() -> None:
    """A slow store keeps this side from reading for any length of time."""
    liveness = Liveness(1)
    assert LivenessVerdict.SILENT not in turns(liveness, 100, is_reading=False)
    assert turns(liveness, 3)[-1] is LivenessVerdict.SILENT


def test_a_write_that_waits_for_three_turns_is_not_read_however_far_apart_heartbeats_are() -> None:
    """Two turns may just have fallen into two writes; nothing more is written meanwhile."""
    liveness = Liveness(60)
    assert turns(liveness, 2, is_writing=True) == [LivenessVerdict.FINE] * 2
    liveness.written()
    assert turns(liveness, 3, is_writing=True)[-1] is LivenessVerdict.NOT_READING
