"""Accelerate: four processes stop at one step, in the midst of an epoch, and the next run goes on from there."""

from pathlib import Path

import pytest

from tests.frameworks.frameworks_world import FrameworksScript, example, training

# A run imports for half a minute on a busy machine, and a test has two of them.
pytestmark = pytest.mark.timeout(900)

_STEPS = 80
"""Ten epochs of eight."""


async def test_a_stop_loses_and_repeats_no_step(frameworks: Path, tmp_path: Path) -> None:
    """All ranks stop at the same step, and the next run trains on the rest."""
    arguments = (str(tmp_path / "checkpoints"), str(_STEPS))
    async with training(tmp_path, FrameworksScript(frameworks, example("accelerate_loop.py"), arguments)) as job:
        await job.suspend_and_resume(step=12)
        first, second = await job.finish()
    assert {len(losses) + len(second[rank]) for rank, losses in first.items()} == {_STEPS}
