"""Processes whose streams are cut are told by an annotation of their pod."""

import asyncio
import os
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
from kubeai.elastic.testing import FakeSupervisor

from simulator.cluster.identity import show_annotations
from simulator.cluster.objects import RunPod
from simulator.cluster.paths import PodPaths
from supervisor.domain.job import Phase
from tests.controlplane.operator.operator_jobs import operating
from tests.controlplane.trainingjob.trainingjob_world import ElasticJobs, Supervision, supervising
from tests.supervisor.jobs.trainingjob.trainingjob_objects import PREFIX
from tests.testkit.controlplane.namespace import Namespace
from tests.testkit.controlplane.running import RunningCluster
from tests.testkit.waiting import until

_DIRECTIVE = f"{PREFIX}directive"
_LEFT = 7
_TRAINING = f"""
import sys, time
import kubeai.elastic as kubeai
kubeai.init()
print("training", flush=True)
while kubeai.check_alive():
    time.sleep(0.01)
said = kubeai.directive()
print(said.kind.value, said.run, said.generation, said.reason, flush=True)
sys.exit({_LEFT})
"""


async def told(namespace: Namespace, pod: str) -> str:
    """What the annotation of a pod says; nothing where it has none."""
    metadata = (await namespace.get_pod(pod))["metadata"]
    return str(metadata.get("annotations", {}).get(_DIRECTIVE, ""))


async def is_told(namespace: Namespace, pod: str) -> str:
    return await until(lambda: told(namespace, pod), f"{pod} is told")


async def notice(jobs: ElasticJobs, supervised: Supervision, *pods: str, left: float = 300.0) -> None:
    for pod in pods:
        node = (await jobs.namespace.get_pod(pod))["spec"]["nodeName"]
        await supervised.notices(str(node), left=left)


@asynccontextmanager
async def training(home: PodPaths) -> AsyncIterator[Process]:
    """A process with the real SDK, which has heard a supervisor that is not there any more."""
    home.kubeai.mkdir(parents=True)
    (home.kubeai / "annotations").touch()
    with FakeSupervisor() as gone:
        gone.write_identity(home.kubeai)
        env = {**os.environ, "KUBEAI_DIR": str(home.kubeai), "KUBEAI_EXIT_HOLD": "0"}
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", _TRAINING, env=env, stdout=PIPE)
        try:
            await asyncio.to_thread(gone.wait_for, lambda: gone.hellos, 60.0)
            assert process.stdout is not None
            assert await process.stdout.readline() == b"training\n"
            gone.stop()
            yield process
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


async def shows(namespace: Namespace, pod: str, home: PodPaths, process: Process) -> None:
    """Fills the directory as the volume would, until the process has ended."""

    async def ended() -> bool:
        manifest: Any = await namespace.get_pod(pod)
        show_annotations(msgspec.convert(manifest, RunPod), home)
        return process.returncode is not None

    await until(ended, "the process leaves")


async def test_a_stop_reaches_processes_whose_streams_are_cut(
    cluster: RunningCluster, jobs: ElasticJobs, tmp_path: Path
) -> None:
    """All workers, as nobody knows who is rank 0; a real process obeys. The launcher is told nothing."""
    await jobs.nodes(3)
    home = PodPaths(tmp_path / "home")
    async with (
        supervising(cluster, jobs.namespace, tmp_path, rank_zero_grace_seconds=0.5) as supervised,
        operating(cluster, jobs.namespace.name),
        training(home) as process,
    ):
        await jobs.submit("bert", 3)
        await supervised.phase("bert", Phase.RUNNING)
        await notice(jobs, supervised, "bert-worker-0", "bert-worker-1")
        said = [await is_told(jobs.namespace, f"bert-worker-{number}") for number in range(3)]
        job = await supervised.world.job("bert", lambda known: known.decision.stop is not None, "stops")
        stop = job.decision.stop
        assert stop is not None
        assert said == [f"{stop.run} {stop.generation} STOP {job.decision.reason}"] * 3
        assert await told(jobs.namespace, "bert-launcher") == ""
        await shows(jobs.namespace, "bert-worker-2", home, process)
        assert process.stdout is not None
        assert (await process.stdout.read()).decode() == f"STOP {said[0].replace(' STOP', '')}\n"
        assert process.returncode == _LEFT


async def test_a_worker_without_a_stream_is_told_to_leave(
    cluster: RunningCluster, jobs: ElasticJobs, tmp_path: Path
) -> None:
    """Once it is left out and its machine is about to go; the others hear nothing."""
    await jobs.nodes(4)
    async with (
        supervising(cluster, jobs.namespace, tmp_path, margin_seconds=20.0, leave_margin_seconds=1.0) as supervised,
        operating(cluster, jobs.namespace.name),
    ):
        await jobs.submit("bert", 4)
        await supervised.phase("bert", Phase.RUNNING)
        deadline = time.time() + 25
        await notice(jobs, supervised, "bert-worker-1", left=25)
        said = await is_told(jobs.namespace, "bert-worker-1")
        assert deadline - 20 <= time.time() < deadline
        decision = (await supervised.world.appears("bert")).decision
        run, generation, kind, reason = said.split(" ", 3)
        assert (run, kind) == (str(decision.run), "LEAVE")
        assert int(generation) == decision.excluded_at
        assert "bert-worker-1" in reason or reason == decision.reason
        assert [await told(jobs.namespace, f"bert-worker-{number}") for number in (0, 2, 3)] == ["", "", ""]
