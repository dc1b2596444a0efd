"""`steps`: what it asks, saves and reports between two batches."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn

import pytest
from kubeai.elastic import api as library
from kubeai.elastic import loop
from kubeai.elastic.testing import FakeSupervisor

from tests.sdk.sdk_scripts import Start
from tests.testkit.waiting import wait_until


@dataclass
class SaveRecorder:
    """Takes the place of the library's functions and of `save`, and keeps the order of the calls."""

    checkpoint_at: int | None = None
    stop_at: int | None = None
    calls: list[tuple[str, int]] = field(default_factory=list)
    seconds: float | None = None
    left: float | None = 0.0
    is_alone: bool = True
    pauses: list[float] = field(default_factory=list)

    def resumed(self, step: int) -> None:
        self.calls.append(("resumed", step))

    def should_stop(self, step: int) -> bool:
        return step == self.stop_at

    def should_checkpoint(self, step: int) -> bool:
        return step == self.checkpoint_at

    def save(self, step: int) -> None:
        self.calls.append(("save", step))

    def checkpoint_saved(self, step: int, *, seconds: float) -> None:
        self.calls.append(("saved", step))
        self.seconds = seconds

    def checkpoint_failed(self, error: Exception, step: int) -> None:
        assert "no space" in str(error)
        self.calls.append(("failed", step))

    def seconds_left(self) -> float | None:
        return self.left

    def may_save_again(self) -> bool:
        return self.is_alone

    def exit_for_resume(self) -> NoReturn:
        self.calls.append(("exit", 75))
        raise SystemExit(75)


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> SaveRecorder:
    recorder = SaveRecorder()
    taken = ("resumed", "should_stop", "should_checkpoint", "checkpoint_saved", "checkpoint_failed", "exit_for_resume")
    for name in (*taken, "seconds_left", "may_save_again"):
        monkeypatch.setattr(library, name, getattr(recorder, name))
    monkeypatch.setattr("kubeai.elastic.loop.time.sleep", recorder.pauses.append)
    return recorder


def batches(taken: list[int], first: int, last: int) -> Iterator[int]:
    """Yield batches, and note in `taken` which were asked for."""
    for batch in range(first, last):
        taken.append(batch)
        yield batch


def test_it_yields_each_batch_with_its_step(api: SaveRecorder) -> None:
    """Counted from the checkpoint, whose step is reported once."""
    assert list(loop.steps("abc", api.save, first=7)) == [(7, "a"), (8, "b"), (9, "c")]
    assert api.calls == [("resumed", 7)]


def test_a_requested_checkpoint_is_saved_and_training_continues(api: SaveRecorder) -> None:
    api.checkpoint_at = 2
    assert [step for step, _ in loop.steps("abc", api.save)] == [0, 1, 2]
    assert api.calls == [("resumed", 0), ("save", 2), ("saved", 2)]
    assert api.seconds is not None


def test_a_stop_saves_the_finished_step_and_exits(api: SaveRecorder) -> None:
    """No further batch is taken from the loader."""
    api.stop_at, taken, trained = 2, list[int](), list[int]()
    with pytest.raises(SystemExit) as ended:
        trained.extend(step for step, _ in loop.steps(batches(taken, 0, 9), api.save))
    assert ended.value.code == 75
    assert taken == [0, 1]
    assert api.calls == [("resumed", 0), ("save", 2), ("saved", 2), ("exit", 75)]


def test_a_stop_that_comes_between_two_questions_is_saved_for_once(
    api: SaveRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by SIGTERM: a stop of rank 0 asks for a checkpoint as well, and there may be no time for two."""
    asked = list[int]()

    def asks(step: int) -> bool:
        asked.append(step)
        return len(asked) > 1

    for name in ("should_stop", "should_checkpoint"):
        monkeypatch.setattr(library, name, asks)
    with pytest.raises(SystemExit):
        list(loop.steps("abc", api.save))
    assert api.calls == [("resumed", 0), ("save", 1), ("saved", 1), ("exit", 75)]


def test_a_stop_after_the_last_batch_is_not_missed(api: SaveRecorder) -> None:
    api.stop_at = 3
    with pytest.raises(SystemExit):
        list(loop.steps("abc", api.save))
    assert ("save", 3) in api.calls


@pytest.mark.parametrize("wanted", ["checkpoint_at", "stop_at"])
def test_a_save_that_fails_is_reported_as_that(api: SaveRecorder, wanted: str) -> None:
    """Its exception reaches the script, which neither goes on nor exits as if it could be resumed from there."""

    def save(step: int) -> None:
        raise OSError(f"no space left for step {step}")

    setattr(api, wanted, 1)
    with pytest.raises(OSError, match="step 1"):
        list(loop.steps("abc", save))
    assert api.calls == [("resumed", 0), ("failed", 1)]


@pytest.mark.parametrize(
    ("left", "is_alone", "pauses"),
    [(None, True, [1.0]), (10.0, True, [1.0, 2.0, 4.0]), (2.5, True, []), (None, False, [])],
    ids=["no deadline", "time for some", "time for none", "all ranks have to"],
)
def test_a_save_that_fails_in_a_stop_is_tried_again_while_there_is_time(
    api: SaveRecorder, left: float | None, pauses: list[float], *, is_alone: bool
) -> None:
    api.stop_at, api.left, api.is_alone = 1, left, is_alone
    with pytest.raises(OSError, match="no space"):
        list(loop.steps("abc", _full))
    assert api.pauses == pauses
    assert api.calls == [("resumed", 0), *[("failed", 1)] * (len(pauses) + 1)]


def test_a_save_that_fails_without_a_stop_is_not_tried_again(api: SaveRecorder) -> None:
    api.left = None
    with pytest.raises(OSError, match="no space"):
        list(loop.steps("abc", _full, every=2))
    assert (api.pauses, api.calls) == ([], [("resumed", 0), ("failed", 2)])


def _full(step: int) -> None:
    raise OSError(f"no space for step {step}")


def test_a_loop_that_is_left_neither_saves_nor_exits(api: SaveRecorder) -> None:
    api.stop_at = 1
    for _step, _batch in loop.steps("abc", api.save):
        break
    assert api.calls == [("resumed", 0)]


def test_an_exception_of_the_loader_reaches_the_script(api: SaveRecorder) -> None:
    def broken() -> Iterator[int]:
        yield 1
        raise ValueError("a broken record")

    with pytest.raises(ValueError, match="a broken record"):
        list(loop.steps(broken(), api.save))
    assert api.calls == [("resumed", 0)]


def test_checkpoints_can_be_saved_every_so_many_steps(api: SaveRecorder) -> None:
    """Counted from step 0, not from the start of the run."""
    list(loop.steps("abcd", api.save, first=5, every=3))
    assert api.calls == [("resumed", 5), ("save", 6), ("saved", 6), ("save", 9), ("saved", 9)]


def test_a_checkpoint_every_zero_steps_is_refused_before_training(api: SaveRecorder) -> None:
    with pytest.raises(ValueError, match="every is 0"):
        loop.steps("abc", api.save, every=0)
    assert not api.calls


@pytest.mark.parametrize("save", [lambda: None, divmod, 5, None])
def test_a_save_that_cannot_be_called_with_a_step_is_refused_before_training(api: SaveRecorder, save: Any) -> None:
    """Otherwise the mistake would show itself only at the reclaim."""
    with pytest.raises(TypeError, match="save"):
        loop.steps("abc", save)
    assert not api.calls


@pytest.mark.parametrize("save", [print, max, SaveRecorder().save])
def test_a_save_of_any_kind_is_taken_if_it_takes_a_step(api: SaveRecorder, save: Any) -> None:
    assert list(loop.steps("a", save)) == [(0, "a")]
    assert api.calls == [("resumed", 0)]


@pytest.mark.parametrize(("first", "error"), [(-1, ValueError), ("3", TypeError), (1.5, TypeError)])
def test_a_first_step_that_is_none_is_refused_before_training(
    api: SaveRecorder, first: Any, error: type[Exception]
) -> None:
    with pytest.raises(error):
        loop.steps("abc", api.save, first=first)
    assert not api.calls


@pytest.mark.parametrize("given", [{"rank": "0"}, {"rank": -1}, {"rank": True}, {"rank": len}, {"world_size": 1.5}])
def test_a_rank_that_is_neither_a_number_nor_a_function_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=next(iter(given))):
        library.init(**given)


def test_a_resume_from_a_step_below_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="-1"):
        library.resumed(-1)


RANKLESS = """
    import time
    import kubeai.elastic as kubeai
    from kubeai.elastic import reporter

    reporter._UNKNOWN_SECONDS = 0.0
    kubeai.init({rank})
    while not kubeai.directive().generation:
        time.sleep(0.005)
"""


def test_a_process_without_a_rank_says_so_once(supervisor: FakeSupervisor, start: Start) -> None:
    """Long before a reclaim, at which only rank 0 can answer."""
    script = start(RANKLESS.format(rank=""))
    wait_until(lambda: "this process's rank is unknown: pass rank= to init() or set RANK" in script.output())
    supervisor.direct(generation=1)
    assert script.end() == 0
    assert script.err.read_text().count("\n") == 1


def test_a_rank_may_be_a_number(supervisor: FakeSupervisor, start: Start) -> None:
    script = start(RANKLESS.format(rank="0"))
    supervisor.wait_for(lambda: [each.body["rank"] for each in supervisor.hellos] == [0])
    supervisor.direct(generation=1)
    assert script.end() == 0
    assert script.output() == ""


COST = """
    import time
    import kubeai.elastic as kubeai

    STEPS = 20_000

    def nanoseconds(steps):
        begun = time.perf_counter_ns()
        for _ in steps:
            pass
        return (time.perf_counter_ns() - begun) / STEPS

    kubeai.init(rank=lambda: 0)
    while kubeai.directive().generation == 0:
        time.sleep(0.01)
    own = min(nanoseconds(kubeai.steps(range(STEPS), print)) for _ in range(20))
    # In one piece: without a buffer, print writes each of its arguments by itself.
    print(f"cost {round(own - min(nanoseconds(enumerate(range(STEPS))) for _ in range(20)))}")
"""


def test_a_step_costs_little(
    supervisor: FakeSupervisor, start: Start, record_property: Callable[[str, object], None]
) -> None:
    """Less than a microsecond on an idle machine, while a supervisor is connected."""
    supervisor.direct(generation=1)
    script = start(COST)
    script.wait_for_line("cost")
    cost = int(script.out.read_text().split()[-1])
    record_property("nanoseconds a step", cost)
    assert cost < 10_000
