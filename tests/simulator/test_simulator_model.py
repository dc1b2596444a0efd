"""The model, its checkpoint and the event log: what every judgement rests on."""

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from simulator import checkpoint
from simulator.checkpoint import DamagedCheckpointError
from simulator.events import DamagedLogError, EventLog, JobEventKind, read
from simulator.model import Task, _unpack, digest, reference, shards_of

TASK = Task(seed=3, shards=48)


def test_training_learns() -> None:
    params = TASK.first_params()
    before = TASK.loss(params)
    for step in range(1, 201):
        params = TASK.updated(params, TASK.gradient(params, step, range(TASK.shards)))
    assert TASK.loss(params) < before / 3


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 24, 48])
def test_the_sum_does_not_depend_on_the_number_of_workers(size: int) -> None:
    """However the shards are shared out, their gradients add up to the same integers."""
    params = TASK.first_params()
    for step in (1, 7, 9):
        whole = TASK.gradient(params, step, range(TASK.shards))
        parts = [TASK.gradient(params, step, shards_of(rank, size, TASK.shards)) for rank in range(size)]
        assert np.array_equal(sum(parts), whole)


def test_every_shard_has_one_rank() -> None:
    for size in (1, 5, 48, 50):
        shared = [shard for rank in range(size) for shard in shards_of(rank, size, 48)]
        assert shared == list(range(48))
    assert not TASK.gradient(TASK.first_params(), 1, range(0)).any()


def test_the_gradient_is_computed_in_whole_numbers() -> None:
    """No linear algebra library can change a bit: integers in place of floats give the same gradient."""

    def units(values: NDArray[np.float64]) -> NDArray[np.int64]:
        return np.rint(values * 2**12).astype(np.int64)

    def halved(products: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.rint(products / 2**12).astype(np.int64)

    for step in (1, 5):
        params = TASK.updated(TASK.first_params(), TASK.gradient(TASK.first_params(), 8, range(48)))
        inputs, targets = map(units, TASK._samples(step, range(2, 4)))
        w1, b1, w2, b2 = map(units, _unpack(params))
        hidden = halved(np.maximum(inputs @ w1 + b1 * 2**12, 0))
        error = halved(hidden @ w2 + (b2 - targets) * 2**12)
        back = halved(error @ w2.T) * (hidden > 0)
        parts = (inputs.transpose(0, 2, 1) @ back, back * 2**12, hidden.transpose(0, 2, 1) @ error, error * 2**12)
        sums = (parts[0].sum(0), parts[1].sum((0, 1)), parts[2].sum(0), parts[3].sum((0, 1)))
        whole = np.concatenate([one.ravel() for one in sums])
        assert np.array_equal(TASK.gradient(params, step, range(2, 4)), whole)


def test_the_reference_depends_on_all_that_matters() -> None:
    assert len({reference(5), reference(6), reference(5, seed=2), reference(5, shards=24)}) == 4
    assert reference(0) == digest(Task(1, 48).first_params(), 0)


def test_a_checkpoint_comes_back_bit_by_bit(tmp_path: Path) -> None:
    """What was saved last is loaded, and nothing else is left in the folder."""
    path = tmp_path / "checkpoint"
    assert checkpoint.load(path) is None
    params = TASK.first_params()
    checkpoint.save(path, params, 3)
    checkpoint.save(path, params * 2, 4)
    loaded = checkpoint.load(path)
    assert loaded is not None
    assert (digest(*loaded), loaded[1]) == (digest(params * 2, 4), 4)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("damage", [b"", b"4 x\n", b"nonsense", None], ids=["empty", "no digest", "nonsense", "cut"])
def test_a_damaged_checkpoint_is_refused(tmp_path: Path, damage: bytes | None) -> None:
    path = tmp_path / "checkpoint"
    checkpoint.save(path, TASK.first_params(), 3)
    path.write_bytes(path.read_bytes()[:-8] if damage is None else damage)
    with pytest.raises(DamagedCheckpointError):
        checkpoint.load(path)


def test_events_of_all_processes_are_merged_by_time(tmp_path: Path) -> None:
    """Several writers, one order; a line that a killed writer did not finish is left out."""
    with EventLog(tmp_path / "events", "one") as one, EventLog(tmp_path / "events", "two") as two:
        one.write(JobEventKind.NODE_ADDED, node="a")
        two.write("step.applied", step=1)
        one.write(JobEventKind.SCENARIO_ENDED)
    with (next((tmp_path / "events").glob("one-*"))).open("a") as torn:
        torn.write('{"t": 1, "event": "node.g')
    assert [event.kind for event in read(tmp_path / "events")] == [
        JobEventKind.NODE_ADDED,
        JobEventKind.STEP_APPLIED,
        JobEventKind.SCENARIO_ENDED,
    ]


@pytest.mark.parametrize("line", ["{", '{"t": 1}', '{"t": 1, "event": "no.such"}', '{"event": "node.added"}', "[]"])
def test_a_damaged_line_is_not_passed_over(tmp_path: Path, line: str) -> None:
    """What is no event in the middle of a log makes it useless for judging."""
    (tmp_path / "x.jsonl").write_text(f"{line}\n{json.dumps({'t': 1, 'event': 'node.added'})}\n")
    with pytest.raises(DamagedLogError, match=r"x\.jsonl:1"):
        read(tmp_path)


def test_without_a_directory_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SIM_EVENTS", raising=False)
    monkeypatch.chdir(tmp_path)
    with EventLog.from_environment("x") as log:
        log.write(JobEventKind.SCENARIO_ENDED)
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_event_is_a_mistake(tmp_path: Path) -> None:
    """A writer cannot invent words that the judge would not know."""
    with EventLog(tmp_path, "x") as log, pytest.raises(ValueError, match=r"step\.aplied"):
        log.write("step.aplied")
