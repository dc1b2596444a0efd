"""Tests that hold for TrainJobs under any version of their controllers."""

from typing import Any

import msgspec

from supervisor.jobs.jobset.kind import read_jobset
from supervisor.jobs.trainjob.kind import TRAINJOB
from tests.controlplane.kinds.kind_contract import KindContract
from tests.controlplane.kinds.operators import documented, observed_size
from tests.controlplane.kinds.trainjob.trainjob_jobs import TrainJobs
from tests.testkit.waiting import until

_KIND = TRAINJOB


class TrainJobContract(KindContract):
    """What holds for every kind of job. A TrainJob has its size from the JobSet that is made of it and its runtime."""

    async def test_documented(self, jobs: TrainJobs) -> None:  # type: ignore[override]
        """They have the sizes that they claim once their controller has made JobSets of them and their runtimes."""
        sizes = []
        for runtime, job in documented(_KIND):
            await jobs.create_runtime(runtime)
            sizes.append(await _size(jobs, await jobs.accepted(job)))
        assert tuple(sizes) == self.support.documented


async def _size(jobs: TrainJobs, trainjob: Any) -> tuple[int, int]:
    jobset = await until(lambda: jobs.jobsets.get(trainjob["metadata"]["name"]), "it has a JobSet")
    made = read_jobset(msgspec.json.encode(jobset))
    return observed_size(_KIND, _KIND.decode(msgspec.json.encode(trainjob)).joined(made))
