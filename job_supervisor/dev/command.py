"""Runs `elastic-job-supervisor dev` from its arguments to its exit code: shows a job, or holds the fire drill.

In the drill, hosts of the sample job are reclaimed and return. The reclaims are announced by a file, as a cloud would
announce them, and at the deadline the host's agent is killed. The verdict says what became of the training.
"""

import argparse
import asyncio
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from job_supervisor.dev.options import ChildEnded, DevError, DevOptions, DevUsageError, instructions, options
from job_supervisor.dev.scene import LOOK_SECONDS, DevScene, DevWorkspace, SimulatedHost, claimed, opened, say
from servicekit.commands import SysExit
from servicekit.wording import listed
from supervisor.observability.views import AcknowledgementView, JobView

_DONE, _FAILED, _INTERRUPTED = 0, 1, 130
_LEAD_SECONDS = 15.0
_PATIENCE_SECONDS = 120.0
_MORE_STEPS = 10
_FIRST, _SECOND = 1, 2
"""The runs of the job in a drill."""


def run(given: argparse.Namespace) -> int:
    """Runs `dev` and returns the exit code."""
    try:
        chosen = options(given)
        with claimed(chosen.directory) as workspace:
            code = asyncio.run(_main(chosen, workspace))
            if code != _FAILED:  # Otherwise the logs are needed.
                workspace.clear()
            return code
    except (DevError, OSError) as error:
        sys.stderr.write(f"elastic-job-supervisor dev: {error}\n")
        return SysExit.USAGE if isinstance(error, DevUsageError) else _FAILED


async def _main(chosen: DevOptions, workspace: DevWorkspace) -> int:
    """Runs `dev`. The first signal ends everything in order, the second at once."""
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("not in a task")
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    try:
        async with opened(chosen, workspace) as scene:
            try:
                code = await (_drilled(scene) if chosen.drill else _shown(scene))
            except asyncio.CancelledError:
                task.uncancel()
                say("Ending everything. Press Ctrl-C again to end it at once.")
                code = _INTERRUPTED if chosen.drill else _DONE
            except ChildEnded:
                if scene.supervisor.running:  # Without it, nobody could have the job saved.
                    await scene.close()
                raise
            await scene.close()
    except asyncio.CancelledError:
        say("Everything was ended at once.")
        return _INTERRUPTED
    say("Everything has ended.")
    return code


@dataclass(slots=True)
class JobNarrator:
    """Prints each new phase and reason of a job once."""

    _last: tuple[str, str] = ("", "")

    def follow(self, job: JobView) -> None:
        now = (job.phase, job.reason)
        if now != self._last:
            self._last = now
            say(f"The job is {job.phase}: {job.reason}")


async def _shown(scene: DevScene) -> int:
    """Starts the job and prints what happens to it, until it has succeeded."""
    await scene.await_agents()
    scene.start_job()
    say(instructions(scene.options, scene.workspace.sign_in_link(scene.url), scene.workspace.viewer_token))
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


class SampleProgress(msgspec.Struct, frozen=True):
    """A run of the sample job, as its launcher writes it after every step.

    `first_step` is the step of the checkpoint that it loaded, `step` the last step that it finished.
    """

    first_step: int
    step: int
    loss: float
    hosts: list[str]


def progress(directory: Path, run: int) -> SampleProgress | None:
    """Reads the progress of a run; None before its first step."""
    try:
        return msgspec.json.decode((directory / f"run-{run}.json").read_bytes(), type=SampleProgress)
    except FileNotFoundError:
        return None


@dataclass(frozen=True, slots=True)
class DrillClaim:
    """A sentence of the verdict, and whether it is true."""

    claim: str
    holds: bool


def shrunk(excluded: str, run: int) -> DrillClaim:
    """Checks that the others went on after one host was reclaimed."""
    return DrillClaim(f"training continued without {excluded}, and was not restarted (run {run})", run == 1)


def stopped(answer: AcknowledgementView | None, last: SampleProgress) -> list[DrillClaim]:
    """Checks that rank 0 saved the last step when too few hosts were left."""
    saved = None if answer is None or answer.kind != "saved" else answer.step
    if saved is None:
        return [DrillClaim("rank 0 did not say that it saved a checkpoint", holds=False)]
    return [
        DrillClaim(f"rank 0 saved a checkpoint when it was told to, at step {saved}", holds=True),
        DrillClaim(f"{last.step - saved} steps were lost: {last.step} were trained, {saved} saved", last.step == saved),
    ]


def resumed(last: SampleProgress, again: SampleProgress, hosts: Sequence[str]) -> list[DrillClaim]:
    """Checks that the job went on where it was stopped, on all hosts, after they came back."""
    return [
        DrillClaim(f"the next run resumed at step {again.first_step} of {last.step}", again.first_step == last.step),
        DrillClaim(f"{len(again.hosts)} of {len(hosts)} hosts train again", sorted(again.hosts) == sorted(hosts)),
    ]


async def _drilled(scene: DevScene) -> int:
    """Holds the drill and prints its verdict."""
    drill = _SampleDrill(scene)
    try:
        await drill.run()
    except _NotInTime as missing:
        drill.claims.append(DrillClaim(f"not within {_PATIENCE_SECONDS:g} s: {missing}", holds=False))
    lines = [f"  {'ok    ' if each.holds else 'FAILED'}  {each.claim}" for each in drill.claims]
    say("\n".join(["Verdict:", *lines]))
    passed = all(each.holds for each in drill.claims)
    say("The drill has passed." if passed else f"The drill has FAILED. The logs are in {scene.workspace.logs}.")
    return _DONE if passed else _FAILED


class _NotInTime(Exception):  # noqa: N818 - the name describes what happened
    """Something did not happen in time. The message says what."""


@dataclass(slots=True)
class _SampleDrill:
    """Holds one drill. Each of its steps adds to `claims`."""

    scene: DevScene
    claims: list[DrillClaim] = field(default_factory=list)
    narrator: JobNarrator = field(default_factory=JobNarrator)

    async def run(self) -> None:
        scene, hosts, least = self.scene, self.scene.hosts, self.scene.options.min_workers
        await scene.await_agents()
        say(f"Starting the sample job on {len(hosts)} hosts. It needs at least {least}.")
        scene.start_job()
        await self._until(lambda job: job.running and self._last(_FIRST).step >= _MORE_STEPS, "the job trains")

        one, kept = hosts[-1], sorted(each.name for each in hosts[:-1])
        say(f"{one.name} will be reclaimed in {_LEAD_SECONDS:g} s. The other hosts are enough to continue.")
        one.announce(_LEAD_SECONDS)
        await self._until(
            lambda job: sorted(job.workers) == kept and self._last(_FIRST).hosts == kept, f"{one.name} is excluded"
        )
        more = self._last(_FIRST).step + _MORE_STEPS
        job = await self._until(lambda _: self._last(_FIRST).step >= more, "training continues on the other hosts")
        self.claims.append(shrunk(one.name, job.run))
        await self._take([one])

        too_many = hosts[least - 1 : -1]
        say(
            f"{_names(too_many)} will be reclaimed in {_LEAD_SECONDS:g} s. Only {least - 1} would be left: the job "
            "has to save its state and stop."
        )
        for host in too_many:
            host.announce(_LEAD_SECONDS)
        job = await self._until(lambda job: job.phase == "Suspended" and not job.running, "the job is suspended")
        last = self._last(_FIRST)
        self.claims += stopped(job.acknowledgement, last)
        await self._take(too_many)

        back = hosts[least - 1 :]
        say(f"{_names(back)} {'is' if len(back) == 1 else 'are'} back, as new machines.")
        for host in back:
            host.boot()
        more = last.step + _MORE_STEPS
        await self._until(lambda job: job.phase == "Running" and self._last(_SECOND).step >= more, "training continues")
        self.claims += resumed(last, self._last(_SECOND), [host.name for host in hosts])

    async def _take(self, hosts: Sequence[SimulatedHost]) -> None:
        for host in hosts:
            await host.vanish()
        say(f"{_names(hosts)} {'is' if len(hosts) == 1 else 'are'} gone.")

    async def _until(self, holds: Callable[[JobView], bool], what: str) -> JobView:
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                while True:
                    job = await self.scene.job_status()
                    if job is not None:
                        self.narrator.follow(job)
                        if holds(job):
                            return job
                    await asyncio.sleep(LOOK_SECONDS)
        except TimeoutError as error:
            raise _NotInTime(what) from error

    def _last(self, run: int) -> SampleProgress:
        found = progress(self.scene.workspace.progress, run)
        return SampleProgress(first_step=0, step=0, loss=0.0, hosts=[]) if found is None else found


def _names(hosts: Sequence[SimulatedHost]) -> str:
    return listed([host.name for host in hosts])
