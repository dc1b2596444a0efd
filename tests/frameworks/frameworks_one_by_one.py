"""Jobs of JAX and of TensorFlow, whose processes are started one by one and print their losses."""

import asyncio
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from tests.frameworks.frameworks_losses import Curve, steps_repeated
from tests.frameworks.frameworks_world import FrameworksScript, example, faked, training

RESUME = 75
"""The exit code of a process that is to be started again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OneByOneScript(FrameworksScript):
    """A script of which each process is started by itself.

    Attributes:
        framework: Says from which variables a process knows its place among the others.
    """

    framework: Literal["jax", "tensorflow"]
    processes: int = 2
    step_seconds: float = 0.05

    def command(self) -> list[str]:
        launcher = str(Path(__file__).with_name("frameworks_launcher.py"))
        how = [self.framework, str(self.processes), str(self.path), *self.arguments]
        return [str(self.home / "bin" / "python"), launcher, *how]


def jax_orbax(home: Path, root: Path, steps: int) -> OneByOneScript:
    """The example of JAX, whose processes gloo connects."""
    return OneByOneScript(home, example("jax_orbax.py"), (str(root / "checkpoints"), str(steps)), framework="jax")


def tensorflow_workers(home: Path, root: Path, steps: int) -> OneByOneScript:
    """The example of TensorFlow, whose workers know each other from TF_CONFIG as in a TFJob."""
    arguments = (str(root / "checkpoints"), str(steps))
    variables = {"KERAS_BACKEND": "tensorflow"}
    path = example("tensorflow_workers.py")
    return OneByOneScript(home, path, arguments, framework="tensorflow", variables=variables)


def names_of_checkpoints(script: OneByOneScript) -> list[str]:
    """The names of the files and directories in the directory of checkpoints."""
    directory = Path(script.arguments[0])
    return sorted(path.name for path in directory.iterdir()) if directory.exists() else []


def spoil_checkpoints(script: OneByOneScript) -> None:
    """Put a file in the place of the directory of checkpoints."""
    directory = Path(script.arguments[0])
    shutil.rmtree(directory, ignore_errors=True)
    directory.touch()


async def saved_unasked_and_stopped(root: Path, script: OneByOneScript, every: int) -> int:
    """Stop the job by a faked agreement, when the example has saved unasked after `every` steps; returns the step.

    Each process has reported both checkpoints, and no other one.
    """
    with faked(root, script) as job:
        await job.until_step(every + 2)
        step = await asyncio.to_thread(job.agree_on, lambda step: step > 0)
        await asyncio.to_thread(job.until_left)
        assert await job.end() == RESUME, job.child.tail()
        for rank in range(script.processes):
            saved = [report["step"] for report in job.supervisor.reports_of("saved") if report["rank"] == rank]
            assert list(dict.fromkeys(saved)) == [every, step]  # A report may be sent again.
    return step


async def assert_resumes_from_a_checkpoint(root: Path, script: OneByOneScript, every: int, whole: Curve) -> None:
    """Suspend a job that cannot save together, and check that it resumes from what it has saved by itself.

    Args:
        root: Of the job's world.
        script: It saves by itself each time that `every` steps are finished.
        every: As above.
        whole: The losses of an uninterrupted run.
    """
    # Slow enough not to be done when the host goes.
    async with training(root, replace(script, step_seconds=0.2)) as job:
        await job.suspend_and_resume(step=every + 5)
        first, second = await job.finish()
    assert steps_repeated(whole, first, second) > 0
    assert len(second[0]) % every == 0
