"""Events of two real reclaims under a TrainingJob, read with kubectl."""

from functools import partial
from pathlib import Path

import pytest

from simulator.harness import ServiceSettings
from tests.controlplane.line.line_world import LineJobPlan, LineWorld, world
from tests.testkit.controlplane.kubectl import kubectl
from tests.testkit.controlplane.running import ControlPlane
from tests.testkit.waiting import until

pytestmark = pytest.mark.long

_BY = "job-supervisor.kube-ai.io/supervisor"


class Reader:
    def __init__(self, plane: ControlPlane, one: LineWorld, home: Path) -> None:
        self._namespace = one.namespace.name
        self._kubectl = partial(kubectl, plane.cluster, home)

    async def events(self, kind: str, name: str) -> list[tuple[str, str, str]]:
        """Type, reason and sentence of each of ours below an object."""
        described = await self._kubectl("describe", kind, name, "-n", self._namespace)
        found = []
        for line in described.partition("\nEvents:")[2].splitlines():
            what, by, sentence = line.partition(_BY)
            if by:
                found.append((what.split()[0], what.split()[1], sentence.strip()))
        return found

    async def reads(self, kind: str, name: str, *wanted: tuple[str, str, str]) -> None:
        async def said() -> bool:
            return set(wanted) <= set(await self.events(kind, name))

        try:
            await until(said, f"{wanted} on {kind} {name}")
        except AssertionError:
            assert set(await self.events(kind, name)) == set(wanted)
            raise


@pytest.mark.brief
async def test_describe_tells_what_happens_to_a_job_and_why(plane: ControlPlane, tmp_path: Path) -> None:
    """On the job, its SupervisedJob, the pods that go and the notices: one reclaim leaves enough, one does not."""
    async with world(plane, tmp_path / "world", ServiceSettings()) as one:
        await one.nodes("n0", "n1", "n2", gpus=1)
        await one.connected()
        job = await one.job("j", LineJobPlan(workers=3, min_workers=2, steps=3000, step_seconds=0.1))
        await one.training(job, workers=3)
        reader = Reader(plane, one, tmp_path)
        first = await one.node_of("j-worker-2")
        one.notice([first], lead=120)
        sentence = "j-worker-2 will be reclaimed, says aliyun; continuing with 2 hosts (minimum 2)."
        for kind, name in (("trainingjob", "j"), ("supervisedjob", "trainingjob.j")):
            await reader.reads(kind, name, ("Warning", "Shrinking", sentence))
        await reader.reads("pod", "j-worker-2", ("Warning", "Excluded", sentence))
        (told,) = [each for each in await reader.events("pod", "j-worker-2") if each[1] == "ReclaimNoticed"]
        assert told[2].startswith(f"Node {first} will be reclaimed at 20")
        assert told[2].endswith('Z, says aliyun: "the spot instance will be released"')
        assert await reader.events("pod", "j-worker-0") == []
        (notice,) = await one.here.notices()
        assert await reader.events("reclaimnotice", notice["metadata"]["name"]) == [told]

        one.notice([await one.node_of("j-worker-1")], lead=120, group="second")
        await one.decided(job, "Suspended")
        stopped = "j-worker-1, j-worker-2 will be reclaimed, says aliyun; 1 host would remain (minimum 2): stopping."
        await reader.reads("trainingjob", "j", ("Warning", "Stopping", stopped))
        words = [word for _, word, _ in await reader.events("trainingjob", "j")]
        assert [word for word in words if word not in {"Waiting", "Running"}] == ["Shrinking", "Stopping", "Suspended"]
        one.withdraw([first])
        await reader.reads(
            "reclaimnotice",
            notice["metadata"]["name"],
            ("Normal", "ReclaimWithdrawn", f"Node {first} will not be reclaimed after all, says aliyun."),
        )
