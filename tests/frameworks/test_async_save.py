"""torch.distributed.checkpoint with async_save: a save in the background is finished and reported before a stop."""

import asyncio
from pathlib import Path

import pytest

from tests.frameworks.frameworks_losses import assert_goes_on_exactly
from tests.frameworks.frameworks_world import PROCESSES, FrameworksScript, example, faked, run_alone

pytestmark = pytest.mark.timeout(600)

_STEPS = 120
_EVERY = 50
"""The example saves in the background after so many steps."""


_EXAMPLE = example("fsdp.py")
_FULL_DISK = Path(__file__).with_name("frameworks_full_disk.py")


def _script(home: Path, root: Path, path: Path = _EXAMPLE) -> FrameworksScript:
    variables = {"KUBEAI_EXIT_HOLD": "0"}  # The fake supervisor releases nobody.
    arguments = (str(root / "checkpoints"), str(_STEPS), "background")
    return FrameworksScript(home, path, arguments, variables=variables)


@pytest.mark.long
async def test_each_save_is_reported_with_its_own_step(fsdp2: Path, tmp_path: Path) -> None:
    """The one in the background comes first, then that of the agreed step, from which the next run goes on exactly."""
    whole = await run_alone(tmp_path / "whole", _script(fsdp2, tmp_path / "whole"))
    script = _script(fsdp2, tmp_path)
    with faked(tmp_path, script) as job:
        await job.until_step(_EVERY + 2)
        assert not job.supervisor.reports_of("saved")
        step = await asyncio.to_thread(job.agree_on, lambda _: True)
        assert await job.child.wait(120) != 0
        saved = [(report["rank"], report["step"]) for report in job.supervisor.reports_of("saved")]
        (first,) = job.curves()
    for rank in range(PROCESSES):
        # A report may be sent again.
        assert list(dict.fromkeys(step for reporter, step in saved if reporter == rank)) == [_EVERY, step]
    assert_goes_on_exactly(whole, [first, await run_alone(tmp_path / "second", script)])


@pytest.mark.long
async def test_one_that_fails_ends_neither_training_nor_the_save_at_a_stop(fsdp2: Path, tmp_path: Path) -> None:
    """Every rank reports that the one in the background has failed, and why; the next run has the state of the stop."""
    whole = await run_alone(tmp_path / "whole", _script(fsdp2, tmp_path / "whole"))
    with faked(tmp_path, _script(fsdp2, tmp_path, _FULL_DISK)) as job:
        await job.until_step(_EVERY + 2)
        step = await asyncio.to_thread(job.agree_on, lambda _: True)
        assert await job.child.wait(120) != 0
        saved = {(report["rank"], report["step"]) for report in job.supervisor.reports_of("saved")}
        failed = {(report["rank"], report["step"]) for report in job.supervisor.reports_of("failed")}
        assert all("No space left" in report["error"] for report in job.supervisor.reports_of("failed"))
        (first,) = job.curves()
    assert saved == {(rank, step) for rank in range(PROCESSES)}
    assert failed == {(rank, _EVERY) for rank in range(PROCESSES)}
    assert_goes_on_exactly(whole, [first, await run_alone(tmp_path / "second", _script(fsdp2, tmp_path))])
