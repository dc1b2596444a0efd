"""Runs `elastic-job-supervisor dev` from its arguments to its exit code."""

import argparse
import asyncio
import signal
import sys

from job_supervisor.dev.drill import drill
from job_supervisor.dev.errors import ChildEnded, DevError, UsageError
from job_supervisor.dev.narration import JobNarrator, say
from job_supervisor.dev.options import Options, instructions, options
from job_supervisor.dev.scene import LOOK_SECONDS, Scene, opened
from job_supervisor.dev.workspace import Workspace, claimed
from servicekit.commands import SysExit

_DONE, _FAILED, _INTERRUPTED = 0, 1, 130


def run(given: argparse.Namespace) -> int:
    """Runs it and returns the exit code."""
    try:
        chosen = options(given)
        with claimed(chosen.directory) as workspace:
            code = asyncio.run(_main(chosen, workspace))
            if code != _FAILED:  # Otherwise the logs are needed.
                workspace.clear()
            return code
    except UsageError as error:
        return _complain(error, SysExit.USAGE)
    except (DevError, OSError) as error:
        return _complain(error, _FAILED)


async def _main(chosen: Options, workspace: Workspace) -> int:
    """The first signal ends everything in order, the second at once."""
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("not in a task")
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    try:
        async with opened(chosen, workspace) as scene:
            code = await _worked(chosen, scene, task)
            await scene.close()
    except asyncio.CancelledError:
        say("Everything was ended at once.")
        return _INTERRUPTED
    say("Everything has ended.")
    return code


async def _worked(chosen: Options, scene: Scene, task: "asyncio.Task[int]") -> int:
    try:
        return await (_drilled(scene) if chosen.drill else _shown(scene))
    except asyncio.CancelledError:
        task.uncancel()
        say("Ending everything. Press Ctrl-C again to end it at once.")
        return _INTERRUPTED if chosen.drill else _DONE
    except ChildEnded:
        if scene.supervisor.running:  # Without it, nobody could have the job saved.
            await scene.close()
        raise


async def _drilled(scene: Scene) -> int:
    return _DONE if await drill(scene) else _FAILED


async def _shown(scene: Scene) -> int:
    """Starts the job and says what happens to it, until it has succeeded."""
    await scene.await_agents()
    scene.start_job()
    say(instructions(scene.options, scene.url, scene.workspace.viewer_token))
    narrator = JobNarrator()
    while not scene.is_job_done:
        try:
            job = await scene.job_status()
        except ChildEnded:
            if not scene.was_job_stopped:
                raise
            say("The job was stopped, and has ended.")
            return _DONE
        if job is not None:
            narrator.follow(job)
        await asyncio.sleep(LOOK_SECONDS)
    say("The job has ended successfully.")
    return _DONE


def _complain(error: Exception, code: int) -> int:
    sys.stderr.write(f"elastic-job-supervisor dev: {error}\n")
    return code
