"""What a supervisor has stored about its jobs, as somebody else sees it who watches the resources."""

import asyncio
import time
from collections.abc import Mapping
from typing import Any

from benchmarks.job_history import JobSnapshot
from simulator.cloud.process import TooLate
from tests.testkit.controlplane.api import Api
from tests.testkit.controlplane.installed import JOBS


class JobWatch:
    """All SupervisedJobs, each with everything that was ever seen of it. `run` watches."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._news = asyncio.Event()
        self.snapshots: list[JobSnapshot] = []
        self.present: dict[str, JobSnapshot] = {}
        self.uids: dict[str, str] = {}

    async def run(self) -> None:
        """Follows until it is cancelled; nothing may get lost, so that nothing is caught."""
        listed = await self._api.get(JOBS)
        for each in listed["items"]:
            self._note(each)
        version = listed["metadata"]["resourceVersion"]
        async for event in self._api.watch(JOBS, version):
            if event["type"] not in ("ADDED", "MODIFIED"):
                raise AssertionError(f"no job was to be {event['type']}")
            self._note(event["object"])
        raise AssertionError("the watch has ended")

    async def until(self, phases: Mapping[str, str], seconds: float) -> None:
        """Returns once these jobs have these phases.

        Raises:
            TooLate: Some do not.
        """
        try:
            async with asyncio.timeout(seconds):
                while missing := [job for job, phase in phases.items() if self._phase(job) != phase]:
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            stand = {job: (self._phase(job), phases[job]) for job in missing[:3]}
            raise TooLate(f"{len(missing)} jobs are elsewhere (is, should be): {stand}") from None

    def _phase(self, job: str) -> str:
        return self.present[job].phase if job in self.present else "unknown"

    def _note(self, job: Mapping[str, Any]) -> None:
        if "status" not in job:
            return
        status = job["status"]
        decision = status["decision"]
        hosts = status["hosts"]
        snapshot = JobSnapshot(
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
        self._news.set()
