"""TensorFlow with Keras: workers of MultiWorkerMirroredStrategy stop at one agreed step and resume exactly."""

import asyncio
import shutil
from contextlib import suppress
from pathlib import Path

import pytest

from simulator.cloud.process import TooLate
from tests.frameworks.frameworks_losses import Curve, assert_goes_on_exactly, numbers, steps_of
from tests.frameworks.frameworks_processes import RESUME, TensorFlowJob

pytestmark = pytest.mark.timeout(600)

_STEPS = 300
_EVERY = 50
"""The example saves after so many steps."""
_BATCH = 16
_HANG_SECONDS = 20.0
"""A save of this job takes less than a second."""


@pytest.fixture(scope="module")
def whole(tensorflow: Path, tmp_path_factory: pytest.TempPathFactory) -> Curve:
    """The losses of an uninterrupted run."""
    return asyncio.run(TensorFlowJob(tensorflow, tmp_path_factory.mktemp("whole")).run_alone(_STEPS))


async def test_a_stop_at_one_step_changes_no_loss(tensorflow: Path, tmp_path: Path, whole: Curve) -> None:
    """The chief alone leaves files, each worker reports them, and what the workers count adds up over both runs."""
    job = TensorFlowJob(tensorflow, tmp_path)
    first, step = await job.stop_after_a_save(_STEPS, _EVERY)
    assert {len(losses) for losses in first.values()} == {step}
    assert job.files("*.index") == {f"step-{_EVERY}.index", f"step-{step}.index"}
    assert_goes_on_exactly(whole, [first, await job.run_alone(_STEPS)])
    assert all(f"trained on {_STEPS * _BATCH} rows" in child.tail() for child in job.children)


@pytest.mark.long
@pytest.mark.parametrize("processes", [1, 4])
async def test_another_number_of_workers_goes_on(
    tensorflow: Path, tmp_path: Path, whole: Curve, processes: int
) -> None:
    """No step is lost or repeated; sums in another order change the last bits of a loss."""
    job = TensorFlowJob(tensorflow, tmp_path)
    _, step = await job.stop_after_a_save(_STEPS, _EVERY)
    second = await job.run_alone(_STEPS, processes)
    assert set(second) == set(range(processes))
    for losses in second.values():
        assert numbers(losses) == pytest.approx(numbers(whole[0][step:]), rel=1e-3)


@pytest.mark.long
async def test_a_save_that_fails_in_the_chief_fails_in_all(tensorflow: Path, tmp_path: Path) -> None:
    """The directory of checkpoints becomes a file. No worker waits for the chief or reports a checkpoint."""
    job = TensorFlowJob(tensorflow, tmp_path)
    with job.supervised(_STEPS) as supervisor:
        await job.until_step(5)
        shutil.rmtree(job.checkpoints, ignore_errors=True)
        job.checkpoints.touch()
        await asyncio.to_thread(supervisor.agree, 2, ahead=6)
        assert not {0, RESUME} & set(await job.codes(_HANG_SECONDS)), job.tail()
        errors = {report["rank"]: report["error"] for report in supervisor.reports_of("failed")}
        assert set(errors) == {0, 1}
        assert "not a directory" in errors[0].lower()
        assert not supervisor.reports_of("saved")


@pytest.mark.long
async def test_a_write_that_fails_in_the_chief_is_saved_by_none(tensorflow: Path, tmp_path: Path) -> None:
    """Directories have the names of its files, so it fails after the other worker has taken part and written."""
    job = TensorFlowJob(tensorflow, tmp_path)
    for step in range(_STEPS):
        (job.checkpoints / f"step-{step}.index").mkdir(parents=True)
    with job.supervised(_STEPS) as supervisor:
        await job.until_step(5)
        await asyncio.to_thread(supervisor.agree, 2, ahead=6)
        assert not {0, RESUME} & set(await job.codes(_HANG_SECONDS)), job.tail()
        assert {report["rank"] for report in supervisor.reports_of("failed")} == {0, 1}
        assert not supervisor.reports_of("saved")


@pytest.mark.long
async def test_with_a_worker_that_cannot_agree_nothing_hangs(tensorflow: Path, tmp_path: Path, whole: Curve) -> None:
    """Nobody saves alone: the workers go on until they are killed, and resume from their last checkpoint."""
    job = TensorFlowJob(tensorflow, tmp_path)
    await job.end_without_agreement(_STEPS, after=_EVERY + 2)
    second = await job.run_alone(_STEPS)
    assert second == {rank: losses[_EVERY:] for rank, losses in whole.items()}


@pytest.mark.long
async def test_without_an_agreement_nothing_is_saved(tensorflow: Path, tmp_path: Path) -> None:
    """The control: the chief alone is told, and waits for the other worker."""
    job = TensorFlowJob(tensorflow, tmp_path, agrees=False)
    with job.supervised(_STEPS) as supervisor:
        await job.until_step(10)
        supervisor.direct(0, directive="STOP")
        with suppress(TooLate):
            assert 0 not in await job.codes(_HANG_SECONDS)
        assert not supervisor.reports_of("saved")
    assert steps_of(job.curve()) < _EVERY
