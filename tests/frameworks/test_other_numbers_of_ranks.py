"""Every framework: a job that four processes have begun goes on with two, and one of two goes on with four."""

from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

import pytest

from tests.frameworks.frameworks_losses import Curve, numbers, steps_of
from tests.frameworks.frameworks_scenes import stop_at
from tests.frameworks.frameworks_world import RUN_SECONDS, FrameworksScript, example, faked

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

_COMPARED = 5
"""Losses at the beginning of a run whose mean is compared, as a single one varies."""
_LOWER = 0.75
"""Of the mean loss of a new model. That of a run that goes on under the oldest Accelerate is 0.51 of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """An example whose loss at least halves until it is stopped.

    Attributes:
        name: The example.
        steps: Its last argument.
        stop: The step at which it is stopped, as its integration counts them.
        remaining: By the number of processes in the second run, how many batches each of them trains on. Where an
            epoch is divided between the ranks, two have twice as many left as four would have.
        how: Its further arguments.
    """

    name: str
    steps: int
    stop: int
    remaining: dict[int, int]
    how: tuple[str, ...] = ()


_JOBS = {
    "accelerate": _Job(name="accelerate_loop.py", steps=80, stop=52, remaining={2: 56, 4: 54}),
    "ddp": _Job(name="ddp.py", steps=200, stop=100, remaining={2: 100, 4: 100}),
    # A step accumulates two batches.
    "deepspeed": _Job(name="deepspeed_zero.py", steps=200, stop=100, remaining={2: 200, 4: 200}),
    "fsdp": _Job(name="fsdp.py", steps=200, stop=125, remaining={2: 75, 4: 75}),
    # Four batches of an evaluation follow each fifth training step, and count instead of it; with two processes, eight.
    "huggingface": _Job(name="huggingface.py", steps=60, stop=45, remaining={2: 30, 4: 40}),
    "huggingface-deepspeed": _Job(
        name="huggingface.py", steps=60, stop=45, remaining={2: 30, 4: 40}, how=("deepspeed",)
    ),
    # Each rank has data of its own.
    "keras": _Job(name="keras_fit.py", steps=4, stop=70, remaining={2: 60, 4: 60}),
    # Of four epochs, four processes have trained for two, and two for one.
    "lightning": _Job(name="lightning_ddp.py", steps=4, stop=70, remaining={2: 120, 4: 90}),
}


@pytest.fixture
def home(job: _Job, frameworks: Path, fsdp2: Path) -> Path:
    """The environment that has what the job needs."""
    return fsdp2 if job.name == "fsdp.py" else frameworks


@pytest.mark.parametrize(("before", "after"), [(4, 2), (2, 4)])
@pytest.mark.parametrize("job", _JOBS.values(), ids=_JOBS)
async def test_the_next_run_has_another_number_of_ranks(
    home: Path, tmp_path: Path, job: _Job, before: int, after: int
) -> None:
    """It begins with the step, the model and the optimizer of the checkpoint, and trains on the rest of the data."""
    script = FrameworksScript(
        home,
        example(job.name),
        (str(tmp_path / "checkpoints"), str(job.steps), *job.how),
        processes=before,
        step_seconds=0.02,
    )
    await stop_at(tmp_path, script, job.stop)
    with faked(tmp_path, replace(script, processes=after), run=2) as second:
        assert await second.child.wait(RUN_SECONDS) == 0, second.child.tail()
        resumed = [report["step"] for report in second.supervisor.reports_of("resumed")]
        first_losses, second_losses = second.curves()
    assert resumed == [job.stop] * after
    assert steps_of(second_losses) == job.remaining[after]
    assert _at_first(second_losses) < _at_first(first_losses) * _LOWER
    # A checkpoint that was converted takes as much space again.
    assert not list((tmp_path / "checkpoints").rglob("*universal*"))


def _at_first(curve: Curve) -> float:
    return fmean(loss for losses in curve.values() for loss in numbers(losses[:_COMPARED]))
