"""Watches the SupervisedJobs that a supervisor stores."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from benchmarks.job_history import RecordedJob
from simulator.cloud.process import TooLate
from tests.testkit.controlplane.api import Api
from tests.testkit.controlplane.installed import JOBS


class JobWatch:
    """All SupervisedJobs with their history. `run` watches."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._changed = asyncio.Event()
        self.snapshots: list[RecordedJob] = []
        self.present: dict[str, RecordedJob] = {}
        self.uids: dict[str, str] = {}

    async def run(self) -> None:
        """Watch until cancelled. Errors are not caught, because nothing may get lost."""
        listed = await self._api.get(JOBS)
        for each in listed["items"]:
            self._note(each)
        version = listed["metadata"]["resourceVersion"]
        while True:  # The API server ends the watch of a client that is slow for a moment; nothing is lost.
            async for event in self._api.watch(JOBS, version):
                if event["type"] not in ("ADDED", "MODIFIED"):
                    raise AssertionError(f"unexpected event {event['type']}")
                self._note(event["object"])
                version = event["object"]["metadata"]["resourceVersion"]

    async def until(self, phases: Mapping[str, str], seconds: float) -> None:
        """Return once these jobs have these phases.

        Raises:
            TooLate: Some do not.
        """
        try:
            async with asyncio.timeout(seconds):
                while missing := [job for job, phase in phases.items() if self._phase(job) != phase]:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            stand = {job: (self._phase(job), phases[job]) for job in missing[:3]}
            raise TooLate(f"{len(missing)} jobs have another phase (actual, expected): {stand}") from None

    def _phase(self, job: str) -> str:
        return self.present[job].phase if job in self.present else "unknown"

    def _note(self, job: Mapping[str, Any]) -> None:
        if "status" not in job:
            return
        status = job["status"]
        decision = status["decision"]
        hosts = status["hosts"]
        snapshot = RecordedJob(
            at=time.monotonic(),
            job=f"{job['metadata']['namespace']}/{job['metadata']['name']}",
            generation=decision["generation"],
            phase=decision["phase"],
            run=decision["run"],
            excluded=frozenset((*hosts.get("excluded", ()), *hosts.get("missingExcluded", ()))),
        )
        self.snapshots.append(snapshot)
        self.present[snapshot.job] = snapshot
        self.uids[snapshot.job] = job["spec"]["uid"]
        self._changed.set()


@asynccontextmanager
async def watching(job_watch: JobWatch) -> AsyncIterator[None]:
    """Watch while the block runs. An error of the watch ends the scenario."""
    async with asyncio.TaskGroup() as group:
        watch = group.create_task(job_watch.run())
        yield
        watch.cancel()
