"""Hugging Face Trainer: four processes stop and resume exactly, and a rank that cannot agree makes none hang."""

import asyncio
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.frameworks.frameworks_losses import Curve, assert_goes_on_exactly, steps_of, steps_trained_again
from tests.frameworks.frameworks_world import RUN_SECONDS, FrameworksScript, example, faked, run_alone, training

# A run imports for half a minute on a busy machine, and a test has three of them.
pytestmark = pytest.mark.timeout(900)

_STEPS = 60
_MODULE = "kubeai.elastic.integrations.huggingface"
_SAVED_EVERY = 10
"""As in the example."""

also_with_deepspeed = pytest.mark.parametrize(
    "how", ["train", pytest.param("deepspeed", marks=pytest.mark.long)], scope="module"
)
"""The Trainer alone, and with a configuration of DeepSpeed, with which all ranks write the checkpoint."""


def _script(home: Path, directory: Path, *how: str) -> FrameworksScript:
    return FrameworksScript(home, example("huggingface.py"), (str(directory), str(_STEPS), *how), step_seconds=0.2)


@pytest.fixture(scope="module")
def how() -> str:
    """Return what the example is called with besides the directory and the steps."""
    return "train"


@pytest.fixture(scope="module")
def whole(frameworks: Path, tmp_path_factory: pytest.TempPathFactory, how: str) -> Curve:
    """The losses of an undisturbed run."""
    root = tmp_path_factory.mktemp("whole")
    return asyncio.run(run_alone(root, _script(frameworks, root / "checkpoints", how)))


@pytest.mark.brief
async def test_a_stop_loses_no_step_and_changes_no_bit(frameworks: Path, whole: Curve, tmp_path: Path) -> None:
    """All ranks stop at one step; with dropout and shuffled data, each loss after it is the same, bit by bit."""
    async with training(tmp_path, _script(frameworks, tmp_path / "checkpoints")) as job:
        await job.suspend_and_resume(step=12)
        runs = await job.finish()
    assert len(runs) == 2
    assert_goes_on_exactly(whole, runs)


@pytest.mark.long
async def test_with_deepspeed_a_stop_loses_no_step_and_changes_no_bit(frameworks: Path, tmp_path: Path) -> None:
    """The Trainer has a configuration of DeepSpeed, and all ranks write its checkpoint."""
    script = _script(frameworks, tmp_path / "checkpoints", "deepspeed")
    alone = replace(script, arguments=(str(tmp_path / "alone"), *script.arguments[1:]))
    whole = await run_alone(tmp_path / "whole", alone)
    async with training(tmp_path, script) as job:
        await job.suspend_and_resume(step=12)
        runs = await job.finish()
    assert len(runs) == 2
    assert list((tmp_path / "checkpoints").glob("checkpoint-*/global_step*/*_optim_states.pt"))
    assert_goes_on_exactly(whole, runs)


async def test_a_callback_does_for_tools_that_call_the_trainer_themselves(
    frameworks: Path, whole: Curve, tmp_path: Path
) -> None:
    """A stop at a step that an evaluation follows is saved after the evaluation, and the curve goes on exactly."""
    script = _script(frameworks, tmp_path / "checkpoints", "callback")
    with faked(tmp_path, script) as first:
        await first.until_step(12)
        asked = await asyncio.to_thread(first.agree_on, lambda step: step % 5 == 0)
        await asyncio.to_thread(first.until_left)
        assert {report["step"] for report in first.supervisor.reports_of("saved")} >= {asked}
        assert (tmp_path / "checkpoints" / f"checkpoint-{asked}").is_dir()
        assert await first.end() != 0
    with faked(tmp_path, script, run=2) as second:
        assert await second.child.wait(RUN_SECONDS) == 0, second.child.tail()
        assert {report["step"] for report in second.supervisor.reports_of("resumed")} == {asked}
        assert_goes_on_exactly(whole, second.curves())


@also_with_deepspeed
async def test_an_evaluation_delays_no_stop(frameworks: Path, whole: Curve, tmp_path: Path, how: str) -> None:
    """A stop agreed on for a batch of an evaluation saves the last training step, and the curve goes on exactly.

    Every fifth training step is followed by an evaluation of four batches, so its batches are the steps 5 to 8 of 8.
    """
    script = _script(frameworks, tmp_path / "checkpoints", how)
    with faked(tmp_path, script) as first:
        await first.until_step(12)
        asked = await asyncio.to_thread(first.agree_on, lambda step: step % 8 == 6)
        await asyncio.to_thread(first.until_left)
        assert {report["step"] for report in first.supervisor.reports_of("saved")} >= {asked}
        saved = [int(path.name.rpartition("-")[2]) for path in (tmp_path / "checkpoints").glob("checkpoint-*")]
        assert max(saved) == (asked // 8 + 1) * 5
        assert await first.end() != 0
    with faked(tmp_path, script, run=2) as second:
        assert await second.child.wait(RUN_SECONDS) == 0, second.child.tail()
        assert {report["step"] for report in second.supervisor.reports_of("resumed")} == {asked}
        assert_goes_on_exactly(whole, second.curves())


async def test_a_checkpoint_that_cannot_be_written_is_no_answer(frameworks: Path, tmp_path: Path) -> None:
    """Rank 0 says so with the error, and again when it exits."""
    directory = tmp_path / "checkpoints"
    directory.mkdir()
    for step in range(1, _STEPS):
        if step % _SAVED_EVERY:
            (directory / f"checkpoint-{step}").touch()  # in place of the directory
    with faked(tmp_path, _script(frameworks, directory)) as job:
        await job.until_step(12)
        asked = await asyncio.to_thread(job.agree_on, lambda step: step % 8 == 2)
        supervisor = job.supervisor
        await asyncio.to_thread(
            supervisor.wait_for, lambda: [one for one in supervisor.reports_of("left") if not one["rank"]]
        )
        failed = [(one["rank"], one["step"], one["error"]) for one in supervisor.reports_of("failed")]
        assert any(rank == 0 and step == asked and "FileExistsError" in error for rank, step, error in failed)
        (left,) = [one["error"] for one in supervisor.reports_of("left") if one["rank"] == 0]
        assert "FileExistsError" in left
        assert asked not in {report["step"] for report in supervisor.reports_of("saved")}
        assert await job.end() != 0


@pytest.mark.long
@also_with_deepspeed
async def test_a_supervisor_that_is_killed_while_ranks_agree_loses_no_step(
    frameworks: Path, whole: Curve, tmp_path: Path, how: str
) -> None:
    """It is started again in time, and what it had agreed on or not, ranks stop at one step."""
    slow = replace(_script(frameworks, tmp_path / "checkpoints", how), step_seconds=1.0)
    async with training(tmp_path, slow) as job:
        await job.until_step(7)
        await job.notice(lead=60)
        await job.until_agreeing()
        await job.world.supervisor.kill()
        await job.world.supervisor.start()
        await job.until_suspended()
        await job.give_back()
        assert_goes_on_exactly(whole, await job.finish())


@pytest.mark.long
@also_with_deepspeed
async def test_with_a_rank_that_cannot_agree_nothing_hangs(
    frameworks: Path, whole: Curve, tmp_path: Path, how: str
) -> None:
    """Nobody saves, because a save needs all ranks; the job resumes from the last checkpoint of the Trainer."""
    script = replace(_script(frameworks, tmp_path / "checkpoints", how), cut_off=3)
    async with training(tmp_path, script) as job:
        await job.suspend_and_resume(step=_SAVED_EVERY + 2, lead=10)
        first, second = await job.finish()
    assert 0 < steps_trained_again(whole, first, second) < steps_of(first)


@pytest.mark.long
@also_with_deepspeed
async def test_without_an_agreement_steps_are_lost(frameworks: Path, whole: Curve, tmp_path: Path, how: str) -> None:
    """The control: rank 0 alone is told, waits in its save for the others, and leaves no complete checkpoint."""
    script = replace(_script(frameworks, tmp_path / "checkpoints", how), agrees=False)
    async with training(tmp_path, script) as job:
        await job.suspend_and_resume(step=_SAVED_EVERY + 2, lead=15)
        first, second = await job.finish()
    assert steps_trained_again(whole, first, second) > 0


def test_a_checkpoint_that_is_not_complete_is_left_out(frameworks: Path, tmp_path: Path) -> None:
    """One that is marked, one whose state was not written to its end, and one that has none."""
    _checkpoint(tmp_path, 9, "{}")
    _checkpoint(tmp_path, 10, "{}")
    _checkpoint(tmp_path, 20, '{"epoch": 0')
    _checkpoint(tmp_path, 30, None)
    (_checkpoint(tmp_path, 40, "{}") / "checkpoint-is-incomplete.txt").touch()
    asked = f"import {_MODULE} as module; print(module.latest_checkpoint({str(tmp_path)!r}))"
    said = subprocess.run(
        [str(frameworks / "bin" / "python"), "-c", asked],
        env={**os.environ, **_script(frameworks, tmp_path).environment(tmp_path)},
        check=True,
        capture_output=True,
        text=True,
    )
    assert said.stdout.splitlines()[-1] == str(tmp_path / "checkpoint-10")


def _checkpoint(directory: Path, step: int, state: str | None) -> Path:
    checkpoint = directory / f"checkpoint-{step}"
    checkpoint.mkdir()
    if state is not None:
        (checkpoint / "trainer_state.json").write_text(state, encoding="ascii")
    return checkpoint
