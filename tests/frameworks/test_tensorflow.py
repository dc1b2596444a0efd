"""TensorFlow with Keras: workers of MultiWorkerMirroredStrategy stop at one agreed step and resume exactly."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from tests.frameworks.frameworks_losses import Curve, assert_goes_on_exactly, curves, numbers
from tests.frameworks.frameworks_one_by_one import (
    RESUME,
    OneByOneScript,
    assert_resumes_from_a_checkpoint,
    names_of_checkpoints,
    saved_unasked_and_stopped,
    spoil_checkpoints,
    tensorflow_workers,
)
from tests.frameworks.frameworks_scenes import suspend_past_a_killed_supervisor, tell_one_rank
from tests.frameworks.frameworks_world import RUN_SECONDS, FakedTraining, faked, run_alone, training
from tests.testkit.waiting import until

pytestmark = pytest.mark.timeout(600)

_STEPS = 300
_EVERY = 50
"""The example saves after so many steps."""
_BATCH = 16


@pytest.fixture
def script(tensorflow: Path, tmp_path: Path) -> OneByOneScript:
    return tensorflow_workers(tensorflow, tmp_path, _STEPS)


@pytest.fixture(scope="module")
def whole(tensorflow: Path, tmp_path_factory: pytest.TempPathFactory) -> Curve:
    """The losses of an uninterrupted run."""
    root = tmp_path_factory.mktemp("whole")
    return asyncio.run(run_alone(root, tensorflow_workers(tensorflow, root, _STEPS)))


async def test_a_stop_at_one_step_changes_no_loss(script: OneByOneScript, tmp_path: Path, whole: Curve) -> None:
    """The chief alone leaves files, each worker reports them, and what the workers count adds up over both runs."""
    step = await saved_unasked_and_stopped(tmp_path, script, _EVERY)
    (first,) = curves(tmp_path / "losses")
    assert {len(losses) for losses in first.values()} == {step}
    files = [name for name in names_of_checkpoints(script) if name.endswith(".index")]
    assert files == sorted([f"step-{_EVERY}.index", f"step-{step}.index"])
    with faked(tmp_path, script, run=2) as job:
        assert await job.child.wait(RUN_SECONDS) == 0, job.child.tail()
        assert job.child.log.read_text(encoding="utf-8").count(f"trained on {_STEPS * _BATCH} rows") == script.processes
        assert_goes_on_exactly(whole, job.curves())


@pytest.mark.long
async def test_a_supervisor_killed_in_mid_agreement_loses_no_step(
    script: OneByOneScript, tmp_path: Path, whole: Curve
) -> None:
    async with training(tmp_path, script) as job:
        await suspend_past_a_killed_supervisor(job, step=20)
        assert_goes_on_exactly(whole, await job.finish())


@pytest.mark.long
@pytest.mark.parametrize("processes", [1, 4])
async def test_another_number_of_workers_goes_on(
    script: OneByOneScript, tmp_path: Path, whole: Curve, processes: int
) -> None:
    """No step is lost or repeated; sums in another order change the last bits of a loss."""
    step = await saved_unasked_and_stopped(tmp_path, script, _EVERY)
    second = await run_alone(tmp_path / "second", replace(script, processes=processes))
    assert set(second) == set(range(processes))
    for losses in second.values():
        assert numbers(losses) == pytest.approx(numbers(whole[0][step:]), rel=1e-3)


@pytest.mark.long
async def test_a_save_that_fails_in_the_chief_fails_in_all(script: OneByOneScript, tmp_path: Path) -> None:
    """The directory of checkpoints becomes a file. No worker waits for the chief or reports a checkpoint."""
    with faked(tmp_path, script) as job:
        await job.until_step(5)
        spoil_checkpoints(script)
        errors = await _errors_of_a_save(job)
    assert "not a directory" in errors[0].lower()


@pytest.mark.long
async def test_a_write_that_fails_in_the_chief_is_saved_by_none(script: OneByOneScript, tmp_path: Path) -> None:
    """Directories have the names of its files, so it fails after the other worker has taken part and written."""
    for step in range(_STEPS):
        (tmp_path / "checkpoints" / f"step-{step}.index").mkdir(parents=True)
    with faked(tmp_path, script) as job:
        await job.until_step(5)
        await _errors_of_a_save(job)


@pytest.mark.long
async def test_with_a_worker_that_cannot_agree_nothing_hangs(
    script: OneByOneScript, tmp_path: Path, whole: Curve
) -> None:
    """Nobody saves alone. The job is suspended, and resumes from its last checkpoint."""
    await assert_resumes_from_a_checkpoint(tmp_path, replace(script, cut_off=1), _EVERY, whole)


@pytest.mark.long
async def test_without_an_agreement_nothing_is_saved(script: OneByOneScript, tmp_path: Path) -> None:
    """The control: the chief alone is told, and waits for the other worker."""
    assert await tell_one_rank(tmp_path, script, step=10) == []
    assert not names_of_checkpoints(script)


async def _errors_of_a_save(job: FakedTraining) -> dict[int, str]:
    """Stop the workers at a step whose save fails in all of them; returns their errors."""

    def errors() -> dict[int, str]:
        return {report["rank"]: report["error"] for report in job.supervisor.reports_of("failed")}

    await asyncio.to_thread(job.agree_on, lambda step: step > 0)
    await until(lambda: set(errors()) == set(range(job.processes)), job.child.tail, seconds=60)
    assert await job.end() not in (0, RESUME), job.child.tail()
    assert not job.supervisor.reports_of("saved")
    return errors()
