"""The fire drill: hosts of the sample job are reclaimed and return, and what becomes of the training is checked.

The reclaims are announced by a file, as a cloud would announce them, and at the deadline the host's agent is killed.
"""

import asyncio
from collections.abc import Callable

from job_supervisor.cli.text import listed
from job_supervisor.dev.hosts import SimulatedHost
from job_supervisor.dev.narration import JobNarrator, say
from job_supervisor.dev.scene import LOOK_SECONDS, Scene
from job_supervisor.dev.verdict import Check, Progress, progress, resumed, shrunk, stopped
from supervisor.observability.views import JobView

_LEAD_SECONDS = 15.0
_PATIENCE_SECONDS = 120.0
_MORE_STEPS = 10
_FIRST, _SECOND = 1, 2
"""The runs of the job."""

Condition = Callable[[JobView], bool]


class _NotInTime(Exception):  # noqa: N818 - the name describes what happened
    """Something that must happen did not; the message says what."""


async def drill(scene: Scene) -> bool:
    """Holds the drill and returns whether it has passed."""
    held = _Drill(scene)
    try:
        await held.run()
    except _NotInTime as missing:
        held.checks.append(Check(f"not within {_PATIENCE_SECONDS:g} s: {missing}", holds=False))
    lines = [f"  {'ok    ' if check.holds else 'FAILED'}  {check.claim}" for check in held.checks]
    say("\n".join(["Verdict:", *lines]))
    passed = all(check.holds for check in held.checks)
    say("The drill has passed." if passed else f"The drill has FAILED. The logs are in {scene.workspace.logs}.")
    return passed


class _Drill:
    """One drill; `checks` grows with each step of it."""

    def __init__(self, scene: Scene) -> None:
        self.checks: list[Check] = []
        self._scene = scene
        self._all = scene.hosts
        self._least = scene.options.min_workers
        self._narrator = JobNarrator()

    async def run(self) -> None:
        await self._begin()
        await self._reclaim_one()
        last = await self._reclaim_too_many()
        await self._return(last)

    async def _begin(self) -> None:
        await self._scene.await_agents()
        say(f"Starting the sample job on {len(self._all)} hosts. It needs at least {self._least}.")
        self._scene.start_job()
        await self._until(lambda job: job.running and self._step(_FIRST) >= _MORE_STEPS, "the job trains")

    async def _reclaim_one(self) -> None:
        host, kept = self._all[-1], sorted(one.name for one in self._all[:-1])
        say(f"{host.name} will be reclaimed in {_LEAD_SECONDS:g} s. The other hosts are enough to continue.")
        host.announce(_LEAD_SECONDS)
        await self._until(
            lambda job: sorted(job.workers) == kept and self._hosts(_FIRST) == kept, f"{host.name} is excluded"
        )
        more = self._step(_FIRST) + _MORE_STEPS
        job = await self._until(lambda _: self._step(_FIRST) >= more, "training continues on the other hosts")
        self.checks.append(shrunk(host.name, job.run))
        await self._take([host])

    async def _reclaim_too_many(self) -> Progress:
        hosts = self._all[self._least - 1 : -1]
        say(
            f"{_names(hosts)} will be reclaimed in {_LEAD_SECONDS:g} s. Only {self._least - 1} would be left: the job "
            "has to save its state and stop."
        )
        for host in hosts:
            host.announce(_LEAD_SECONDS)
        job = await self._until(lambda job: job.phase == "Suspended" and not job.running, "the job is suspended")
        last = self._last(_FIRST)
        self.checks += stopped(job.acknowledgement, last)
        await self._take(hosts)
        return last

    async def _return(self, last: Progress) -> None:
        hosts = self._all[self._least - 1 :]
        say(f"{_names(hosts)} {_is(hosts)} back, as new machines.")
        for host in hosts:
            host.boot()
        more = last.step + _MORE_STEPS
        await self._until(lambda job: job.phase == "Running" and self._step(_SECOND) >= more, "training continues")
        self.checks += resumed(last, self._last(_SECOND), [host.name for host in self._all])

    async def _take(self, hosts: list[SimulatedHost]) -> None:
        """Waits for the deadline and takes the machines away."""
        await asyncio.sleep(max(0.0, hosts[0].seconds_left))
        for host in hosts:
            await host.vanish()
        say(f"{_names(hosts)} {_is(hosts)} gone.")

    async def _until(self, holds: Condition, what: str) -> JobView:
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                while True:
                    job = await self._scene.job_status()
                    if job is not None:
                        self._narrator.follow(job)
                        if holds(job):
                            return job
                    await asyncio.sleep(LOOK_SECONDS)
        except TimeoutError as error:
            raise _NotInTime(what) from error

    def _last(self, run: int) -> Progress:
        found = progress(self._scene.workspace.progress, run)
        return Progress(first_step=0, step=0, loss=0.0, hosts=[]) if found is None else found

    def _step(self, run: int) -> int:
        return self._last(run).step

    def _hosts(self, run: int) -> list[str]:
        return self._last(run).hosts


def _names(hosts: list[SimulatedHost]) -> str:
    return listed([host.name for host in hosts])


def _is(hosts: list[SimulatedHost]) -> str:
    return "is" if len(hosts) == 1 else "are"
