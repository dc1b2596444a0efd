"""Tests that hold for every kind of job: a supervisor's process with its own rights beside the kind's real controller.

A kind's suite has a class of this, and fixtures `plane` and `jobs`:

    class TestIndexedJobs(KindContract):
        support = INDEXED_JOB
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar

import pytest

from supervisor.jobs.registry import KINDS
from tests.controlplane.kinds.kind_jobs import ELASTIC, MANAGED, PREFIX, KindJobs
from tests.controlplane.kinds.kind_support import SHOWS, Support
from tests.controlplane.kinds.operator_world import OperatorWorld, world
from tests.controlplane.kinds.operators import documented_jobs
from tests.testkit.controlplane.api import Api
from tests.testkit.controlplane.running import ControlPlane
from tests.testkit.waiting import until


class KindContract:
    """The verbs of a kind: each is a test, and a column of the table that a run prints."""

    support: ClassVar[Support]

    @pytest.fixture(autouse=True)
    def _shown(self, request: pytest.FixtureRequest, record_property: Callable[[str, object], None]) -> None:
        record_property(SHOWS, [self.support.title, request.node.originalname.removeprefix("test_").replace("_", " ")])

    async def test_documented(self, jobs: KindJobs, api: Api) -> None:
        """The API server accepts the sample job and those of the page, and they have the sizes that they claim."""
        [kind] = [kind for kind in KINDS if kind.name == self.support.kind]
        assert tuple(await documented_jobs(api, kind, jobs.namespace)) == self.support.documented

    async def test_reclaimed(self, plane: ControlPlane, jobs: KindJobs, tmp_path: Path) -> None:
        """One host of more than the minimum: the job goes on without it and takes it back, or it stops and resumes."""
        await jobs.nodes(3)
        async with world(plane, jobs, tmp_path / "supervisor") as one:
            await jobs.submit_workers("j", 3, ELASTIC)
            await _running(one, 3, run=1)
            noticed = await one.node_of("j", "worker-1")
            if self.support.leaves_hosts_out:
                await one.notice([noticed])
                await one.decided("j", "Running", run=1, workers=2)
                await one.withdraw([noticed])
                await _running(one, 3, run=1)
            else:
                await one.stop("j", [noticed])
                if self.support.resumes_smaller:
                    await _running(one, 2, run=2)
                else:
                    await one.withdraw([noticed])
                    await _running(one, 3, run=2)
            assert await jobs.retries("j") == 0

    @pytest.mark.brief
    async def test_resumes(self, plane: ControlPlane, jobs: KindJobs, tmp_path: Path) -> None:
        """Below its minimum a job stops, and waits for what it needs; it gets its own size back."""
        await jobs.nodes(3)
        async with world(plane, jobs, tmp_path / "supervisor") as one:
            await jobs.submit_workers("j", 3, ELASTIC)
            await _running(one, 3, run=1)
            noticed = [await one.node_of("j", f"worker-{number}") for number in (1, 2)]
            await one.stop("j", noticed)
            await one.withdraw(noticed[:1])
            if self.support.resumes_smaller:
                await _running(one, 2, run=2)
            await one.withdraw(noticed[1:])
            if self.support.resumes_smaller and not self.support.grows_running:
                # A stop by a notice would leave the two hosts that the next run needs at least, and not wait for more.
                await one.suspend("j")
                await one.resume("j")
                await _running(one, 3, run=3)
            else:
                await _running(one, 3, run=2)
            assert await jobs.retries("j") == 0

    async def test_ten_reclaims(self, plane: ControlPlane, jobs: KindJobs, tmp_path: Path) -> None:
        """In a row, of a job that any failed pod would end: they use up no retry, and leave nothing on the job."""
        await jobs.nodes(2)
        async with world(plane, jobs, tmp_path / "supervisor") as one:
            await jobs.submit_workers("j", 2)
            before = await jobs.annotations("j")
            await _running(one, 2, run=1)
            for run in range(2, 12):
                await _stopped_and_resumed(one, 2, run=run)
            assert await jobs.retries("j") == 0
            kept = {f"{PREFIX}{name}" for name in self.support.keeps}
            assert _ours(await jobs.annotations("j")) - kept == _ours(before)

    async def test_suspended_on_request(self, plane: ControlPlane, jobs: KindJobs, tmp_path: Path) -> None:
        """It saves first, and stays suspended until the request is withdrawn."""
        await jobs.nodes(2)
        async with world(plane, jobs, tmp_path / "supervisor") as one:
            await jobs.submit_workers("j", 2)
            await _running(one, 2, run=1)
            await one.suspend("j")
            await one.resume("j")
            await _running(one, 2, run=2)
            assert await jobs.retries("j") == 0

    async def test_finished(self, plane: ControlPlane, jobs: KindJobs, tmp_path: Path) -> None:
        """Also after a reclaim: nothing of an earlier run counts as completed."""
        await jobs.nodes(2)
        async with world(plane, jobs, tmp_path / "supervisor") as one:
            await jobs.submit_workers("j", 2)
            await _running(one, 2, run=1)
            await _stopped_and_resumed(one, 2, run=2)
            await jobs.succeed("j")
            await one.decided("j", "Finished")

    async def test_timed_out(self, plane: ControlPlane, jobs: KindJobs, tmp_path: Path) -> None:
        """It is marked, and stays suspended, whatever room there is, until a person resumes it."""
        await jobs.nodes(2)
        async with world(plane, jobs, tmp_path / "supervisor") as one:
            await jobs.submit_workers("j", 2, {**MANAGED, f"{PREFIX}max-wait-time": "3"})
            await _running(one, 2, run=1)
            noticed = await one.node_of("j", "worker-1")
            await one.stop("j", [noticed])
            await one.decided("j", "TimedOut")

            async def is_marked() -> bool:
                return (await jobs.annotations("j")).get(f"{PREFIX}job-status") == "timeout"

            await until(is_marked, "the job is marked")
            await one.withdraw([noticed])
            await jobs.has_pods("j")
            await jobs.resume("j")
            await _running(one, 2)

    async def test_left_to_a_person(self, plane: ControlPlane, jobs: KindJobs, tmp_path: Path) -> None:
        """Who suspends a job with the means of its own controller; it is taken up again once they resume it."""
        await jobs.nodes(2)
        async with world(plane, jobs, tmp_path / "supervisor") as one:
            await jobs.submit_workers("j", 2)
            await _running(one, 2, run=1)
            await jobs.suspend("j")
            await jobs.has_pods("j")
            await one.released("j")
            await jobs.resume("j")
            await _running(one, 2)


async def _running(one: OperatorWorld[KindJobs], workers: int, run: int | None = None) -> None:
    await one.jobs.runs("j", workers)
    await one.decided("j", "Running", run=run, workers=workers)


async def _stopped_and_resumed(one: OperatorWorld[KindJobs], workers: int, run: int) -> None:
    """Every worker but rank 0 is on a node that will be reclaimed, until the job is suspended."""
    pods = {name for name in await one.jobs.pods("j") if name.startswith("worker-")}
    noticed = [await one.node_of("j", pod) for pod in sorted(pods)[1:]]
    await one.stop("j", noticed)
    await one.withdraw(noticed)
    await _running(one, workers, run=run)


def _ours(annotations: Mapping[str, str]) -> set[str]:
    return {name for name in annotations if name.startswith(PREFIX)}
