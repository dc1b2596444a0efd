"""Ray Train: its workers stop at one agreed step, report one checkpoint together, and resume exactly."""

import asyncio
import signal
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest

from tests.frameworks.frameworks_losses import (
    Curve,
    assert_goes_on_exactly,
    numbers,
    steps_repeated,
)
from tests.frameworks.frameworks_ray import WORKERS, RayScript, ray_script
from tests.frameworks.frameworks_scenes import stop_at, suspend_past_a_killed_supervisor, tell_one_rank
from tests.frameworks.frameworks_world import RUN_SECONDS, faked, run_alone, training
from tests.testkit.waiting import until

pytestmark = pytest.mark.timeout(900)

_STEPS = 600
_EVERY = 100
"""The example saves unasked after so many steps."""
_STOP = 150
_ALONE_SECONDS = 480.0
"""A run takes 40 s, nearly all of it for the imports of Ray's processes."""
_COMPARED = 5
"""Losses at the beginning of a run whose mean is compared, as a single one varies."""


@pytest.fixture
def script(ray: Path, tmp_path: Path) -> Iterator[RayScript]:
    with ray_script(ray, tmp_path / "checkpoints", _STEPS) as script:
        yield script


@pytest.fixture(scope="module")
def whole_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("whole")


@pytest.fixture(scope="module")
def whole(ray: Path, whole_root: Path) -> Curve:
    """The losses of an uninterrupted run."""

    async def run() -> Curve:
        with ray_script(ray, whole_root / "checkpoints", _STEPS) as script:
            losses = await run_alone(whole_root, script, _ALONE_SECONDS)
            await script.until_ended()
            return losses

    return asyncio.run(run())


async def test_all_workers_stop_at_one_step_and_resume_exactly(
    script: RayScript, tmp_path: Path, whole: Curve, whole_root: Path
) -> None:
    """The losses are equal bit by bit, as are the last parameters, and Ray leaves no process behind."""
    async with training(tmp_path, script) as job:
        await job.suspend_and_resume(step=20)
        assert_goes_on_exactly(whole, await job.finish())
        await script.until_ended()
    assert _tensors(tmp_path) == _tensors(whole_root)


@pytest.mark.long
async def test_a_supervisor_killed_in_mid_agreement_loses_no_step(
    script: RayScript, tmp_path: Path, whole: Curve
) -> None:
    async with training(tmp_path, script) as job:
        await suspend_past_a_killed_supervisor(job, step=20)
        assert_goes_on_exactly(whole, await job.finish())
        await script.until_ended()


@pytest.mark.long
async def test_with_a_worker_that_cannot_agree_nothing_hangs(script: RayScript, tmp_path: Path, whole: Curve) -> None:
    """Nobody reports alone. The job is suspended, and resumes from its last checkpoint."""
    async with training(tmp_path, replace(script, cut_off=1)) as job:
        await job.suspend_and_resume(step=_EVERY + 5)
        _, second = await job.finish()
        await script.until_ended()
    first = {len(losses) - len(second[rank]) for rank, losses in whole.items()}
    assert len(first) == 1
    assert first <= set(range(_EVERY, _STEPS, _EVERY))
    assert {rank: losses[-len(second[rank]) :] for rank, losses in whole.items()} == second


@pytest.mark.long
@pytest.mark.parametrize("workers", [1, 3])
async def test_another_number_of_workers_goes_on(script: RayScript, tmp_path: Path, workers: int) -> None:
    """It begins with the step, the model and the optimizer of the checkpoint."""
    await stop_at(tmp_path, replace(script, step_seconds=0.02), _STOP)
    with faked(tmp_path, replace(script, processes=workers), run=2) as job:
        assert await job.child.wait(RUN_SECONDS) == 0, job.child.tail()
        assert [report["step"] for report in job.supervisor.reports_of("resumed")] == [_STOP] * workers
        first, second = job.curves()
    await script.until_ended()
    assert {rank: len(losses) for rank, losses in second.items()} == dict.fromkeys(range(workers), _STEPS - _STOP)
    assert _at_first(second) < _at_first(first) / 2


@pytest.mark.long
@pytest.mark.parametrize("waits", [True, False])
async def test_a_checkpoint_that_is_reported_as_saved_is_found(
    script: RayScript, tmp_path: Path, whole: Curve, *, waits: bool
) -> None:
    """Ray is killed as soon as all workers have saved. The control does not wait until Ray has recorded the checkpoint.

    Ray's controller stands still until the files of the checkpoint are complete.
    """
    script = replace(script, variables={} if waits else {"FRAMEWORKS_UNRECORDED": "1"})
    with faked(tmp_path, script) as job:
        await job.until_step(5)
        script.signal_controller(signal.SIGSTOP)
        step = await asyncio.to_thread(job.agree_on, lambda step: step > 0)
        await until(lambda: len(_newest(tmp_path)) == WORKERS + 1, job.child.tail, seconds=RUN_SECONDS)
        if waits:
            assert not job.supervisor.reports_of("saved")
            script.signal_controller(signal.SIGCONT)
        await asyncio.to_thread(job.supervisor.wait_for, lambda: len(job.supervisor.reports_of("saved")) >= WORKERS)
        await job.child.kill()
    with faked(tmp_path, script, run=2) as job:
        assert await job.child.wait(RUN_SECONDS) == 0, job.child.tail()
        assert steps_repeated(whole, *job.curves()) == (0 if waits else step)


@pytest.mark.long
async def test_a_stop_is_no_failure_to_ray(script: RayScript, tmp_path: Path) -> None:
    """Ray, which may begin again after three failures, does not, and leaves no process behind."""
    await stop_at(tmp_path, replace(script, variables={"FRAMEWORKS_MAX_FAILURES": "3"}), _STOP)
    await script.until_ended()


@pytest.mark.long
async def test_without_an_agreement_nothing_is_saved(script: RayScript, tmp_path: Path) -> None:
    """The control: rank 0 alone is told, and waits in Ray for the other worker."""
    assert await tell_one_rank(tmp_path, script, 5) == []
    assert not _newest(tmp_path)


def _newest(root: Path) -> list[Path]:
    """The files of the newest checkpoint: one with parameters and optimizer, and one for each worker's random state."""
    found = sorted((root / "checkpoints" / "training").glob("checkpoint_2*"))
    return list(found[-1].iterdir()) if found else []


def _tensors(root: Path) -> dict[tuple[str, str], bytes]:
    """The bytes of all tensors in the newest checkpoint."""
    found = {}
    for file in _newest(root):
        with zipfile.ZipFile(file) as content:
            tensors = (name for name in content.namelist() if "/data/" in name)
            found.update({(file.name, name): content.read(name) for name in tensors})
    assert len(found) > WORKERS
    return found


def _at_first(curve: Curve) -> float:
    return fmean(loss for losses in curve.values() for loss in numbers(losses[:_COMPARED]))
