"""Jobs that go from one member to the other, under the real hub and training-operator, with a real training script."""

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kubeai.elastic import identity

from supervisor.cluster.annotations import LAST_CHECKPOINT, NO_CAPACITY, SUSPENDED_BY
from tests.controlplane.identity.identity_world import AUDIENCE
from tests.controlplane.kinds.kind_jobs import MANAGED, PREFIX
from tests.controlplane.kinds.operator_world import OperatorWorld, world
from tests.controlplane.kinds.trainingoperator.trainingoperator_jobs import PyTorchJobs
from tests.fleet.fleet_world import ONE, TWO, FleetTeam
from tests.testkit.waiting import until

pytestmark = pytest.mark.long

_SDK = Path(__file__).parents[2] / "sdk"
_ELASTIC = {"rdzvBackend": "c10d", "minReplicas": 2, "maxReplicas": 2}
_MOVING = {**MANAGED, f"{PREFIX}max-wait-time": "5", f"{PREFIX}on-timeout": "move"}
_FAILOVER = {
    "application": {
        "decisionConditions": {"tolerationSeconds": 5},
        "purgeMode": "Directly",
        "statePreservation": {"rules": [{"aliasLabelName": LAST_CHECKPOINT, "jsonPath": "{.lastCheckpoint}"}]},
    }
}
_TRAINING = """
    import json, os, sys, time
    from pathlib import Path
    import kubeai.elastic as kubeai

    shared, cluster = Path(os.environ["SHARED"]), os.environ["KUBEAI_CLUSTER"]
    checkpoint = shared / "checkpoint.json"

    def note(what):
        with (shared / "journal").open("a") as journal:
            journal.write(f"{cluster} {what}\\n")

    def save(step):
        while (shared / f"slow-{cluster}").exists():  # as a save that takes the whole grace of its pod
            time.sleep(0.01)
        draft = checkpoint.with_suffix(".draft")
        draft.write_text(json.dumps(step))
        lease.check()
        os.replace(draft, checkpoint)

    kubeai.init(rank=0, sigterm=True)
    lease = kubeai.checkpoint_lease(shared)
    first = json.loads(checkpoint.read_text()) if checkpoint.exists() else 0
    note(f"begins {first}")
    for step, _ in kubeai.steps(range(first, 1_000_000), save, first=first):
        note(f"trains {step}")
        time.sleep(0.02)  # one step
"""
World = OperatorWorld[PyTorchJobs]


@dataclass(frozen=True, slots=True)
class Training:
    """The container of rank 0 in one member; the pods of these nodes run nothing themselves."""

    process: "subprocess.Popen[bytes]"
    said: Path

    def waits(self) -> bool:
        return "waits for the lease" in self.said.read_text(encoding="utf-8")


def _started(variables: Mapping[str, str], said: Path) -> Training:
    with said.open("wb") as stderr:
        command = [sys.executable, "-c", textwrap.dedent(_TRAINING)]
        return Training(subprocess.Popen(command, env=variables, stderr=stderr), said)


class Shared:
    """The storage that both members reach."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._running: list[Training] = []
        directory.mkdir()

    async def train(self, cluster: str, one: World) -> Training:
        """Starts the script of rank 0, as the pod `worker-0` of the job has it."""
        pod = (await one.jobs.pods("j"))["worker-0"]["metadata"]
        bound = {"apiVersion": "v1", "kind": "Pod", "name": pod["name"], "uid": pod["uid"]}
        asked = {"audiences": [AUDIENCE], "expirationSeconds": 600, "boundObjectRef": bound}
        path = f"/api/v1/namespaces/{pod['namespace']}/serviceaccounts/default/token"
        token = str((await one.api.create(path, {"spec": asked}))["status"]["token"])
        await one.supervisor.sees(token)
        home = self.directory / f"identity-{cluster}"
        home.mkdir()
        identity.write(identity.RunIdentity(home, one.supervisor.peers.http, token, None, None, None))
        said = self.directory / f"stderr-{cluster}"
        variables = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(_SDK),
            "KUBEAI_DIR": str(home),
            "KUBEAI_HOST": str(pod["name"]),
            "KUBEAI_CLUSTER": cluster,
            "SHARED": str(self.directory),
        }
        self._running.append(_started(variables, said))
        return self._running[-1]

    def journal(self) -> list[list[str]]:
        file = self.directory / "journal"
        return [line.split() for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []

    def saved(self) -> int:
        return int(json.loads((self.directory / "checkpoint.json").read_text(encoding="utf-8")))

    async def trains(self, cluster: str) -> None:
        """Returns once that member's run has trained twenty steps more."""

        def steps() -> int:
            return sum(line[:2] == [cluster, "trains"] for line in self.journal())

        before = steps()
        await until(lambda: steps() >= before + 20, lambda: f"steps in {cluster}: {self._said()}")

    def is_whole(self) -> bool:
        """Whether each step was trained once, in order, whoever trained it."""
        steps = [int(step) for _, what, step in self.journal() if what == "trains"]
        return steps == list(range(len(steps)))

    def stop(self) -> None:
        for each in self._running:
            each.process.kill()
            each.process.wait()

    def _said(self) -> list[str]:
        return [each.said.read_text(encoding="utf-8") for each in self._running]


@asynccontextmanager
async def _scene(jobs: FleetTeam, directory: Path) -> AsyncIterator[tuple[dict[str, World], Shared, str, str]]:
    """A supervisor in each member, a job that trains in one of them, and the names of that one and the other."""
    for member in jobs.members.values():
        await member.nodes(2)
    await jobs.propagate([ONE, TWO], failover=_FAILOVER)
    one = world(jobs.fleet.members[ONE], jobs.members[ONE], directory / ONE)
    two = world(jobs.fleet.members[TWO], jobs.members[TWO], directory / TWO)
    shared = Shared(directory / "shared")
    async with one as first, two as second:
        worlds = {ONE: first, TWO: second}
        await jobs.hub.submit("j", 2, elastic=_ELASTIC, annotations=_MOVING)
        here = await jobs.placed("j")
        there = TWO if here == ONE else ONE
        await jobs.members[here].runs("j", 2)
        await worlds[here].decided("j", "Running", workers=2)
        await jobs.reflected("j")
        try:
            yield worlds, shared, here, there
        finally:
            shared.stop()


async def _is_there(jobs: FleetTeam, cluster: str) -> None:
    async def placed() -> bool:
        return bool(await jobs.placed("j") == cluster)

    await until(placed, f"the job is in {cluster} alone")


async def test_a_job_without_room_goes_on_in_the_other_member(customized: FleetTeam, tmp_path: Path) -> None:
    """From the checkpoint of its stop: each step is trained once, and no pod is made anew where it was."""
    jobs = customized
    async with _scene(jobs, tmp_path) as (worlds, shared, here, there):
        first = await shared.train(here, worlds[here])
        await shared.trains(here)
        await worlds[here].notice([await worlds[here].node_of("j", "worker-1")])
        assert await until(first.process.poll) == 75
        stored = await worlds[here].decided("j", "Suspended")
        await jobs.members[here].has_pods("j")
        assert stored["status"]["decision"]["resumesFrom"] == shared.saved()

        async def offered() -> Any:
            told = await jobs.members[here].annotations("j")
            assert not await jobs.members[here].pods("j")
            return told.get(NO_CAPACITY) == "true" and told.get(SUSPENDED_BY) and told[LAST_CHECKPOINT]

        assert await until(offered, "the job is given up") == str(shared.saved())
        await _is_there(jobs, there)
        await jobs.members[there].runs("j", 2)
        await worlds[there].decided("j", "Running", workers=2)
        assert (await jobs.members[there].annotations("j"))[LAST_CHECKPOINT] == str(shared.saved())
        await shared.train(there, worlds[there])
        await shared.trains(there)
        assert [there, "begins", str(shared.saved())] in shared.journal()
        assert shared.is_whole()


async def test_two_runs_of_a_job_that_the_hub_moves_while_it_runs_train_one_after_the_other(
    customized: FleetTeam, tmp_path: Path
) -> None:
    """The first one's save takes longer than its pod is there."""
    jobs = customized
    async with _scene(jobs, tmp_path) as (worlds, shared, here, there):
        first = await shared.train(here, worlds[here])
        await shared.trains(here)
        (shared.directory / f"slow-{here}").touch()
        await jobs.place_in([there])
        await _is_there(jobs, there)
        first.process.terminate()  # as the kubelet does with its container
        await jobs.members[there].runs("j", 2)
        second = await shared.train(there, worlds[there])
        await until(second.waits, "the second run waits")
        assert first.process.poll() is None
        (shared.directory / f"slow-{here}").unlink()
        await until(lambda: first.process.poll() is not None, "the first run has saved and ends")
        await shared.trains(there)
        assert [there, "begins", str(shared.saved())] in shared.journal()
        assert shared.is_whole()
