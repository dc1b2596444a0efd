"""`job-supervisor` on a cluster with the habits of kubectl's users: as its plugin, by labels, contexts and Events."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.controlplane.ingest.ingest_cluster import IngestScene
from tests.controlplane.operator.operator_jobs import defined
from tests.job_supervisor.cli.cli_running import Said, environment, run_process
from tests.supervisor.jobs.trainingjob.trainingjob_objects import OPTED_IN, spec
from tests.testkit.controlplane.binaries import BinaryNotBuilt, Tool, client_path
from tests.testkit.waiting import until

pytestmark = pytest.mark.long

_JOBS = "/apis/kai.alibabacloud.com/v1alpha1/namespaces/default/trainingjobs"


@asynccontextmanager
async def _submitted(here: IngestScene, name: str, team: str) -> AsyncIterator[None]:
    """A job of that team, for as long as this is open: other tests have the same API server."""
    metadata = {"name": name, "annotations": dict(OPTED_IN), "labels": {"team": team}}
    job = {"apiVersion": "kai.alibabacloud.com/v1alpha1", "kind": "TrainingJob", "metadata": metadata, "spec": spec(2)}
    await here.api.create(_JOBS, job)
    try:
        yield
    finally:
        await here.api.delete(f"{_JOBS}/{name}")


async def _as_plugin(home: Path, kubeconfig: Path, *arguments: str) -> Said:
    """The real kubectl, which finds the installed command as its plugin, beside another supervisor's data."""
    (home / "job-supervisor-data").mkdir(exist_ok=True)
    (home / "job-supervisor-data" / "endpoints.json").write_text('{"http": "http://127.0.0.1:1"}')
    try:
        kubectl = client_path(Tool.KUBECTL)
    except BinaryNotBuilt as error:
        pytest.skip(str(error))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    process = await asyncio.create_subprocess_exec(
        kubectl,
        "job-supervisor",
        *arguments,
        cwd=home,
        env=environment({"HOME": str(home), "KUBECONFIG": str(kubeconfig), "PATH": path}),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    return Said(process.returncode or 0, out.decode(), err.decode())


async def test_jobs_of_a_cluster_are_chosen_told_and_followed_as_with_kubectl(
    here: IngestScene, tmp_path: Path
) -> None:
    await defined(here.place.plane.cluster)
    admin = here.place.plane.cluster.kubeconfig
    async with (
        _submitted(here, "resnet", "vision"),
        _submitted(here, "bert", "text"),
        here.supervisor(tmp_path / "world"),
    ):

        async def names(*arguments: str) -> list[str]:
            said = await run_process("status", "--kubeconfig", admin, "-o", "name", *arguments)
            assert said.code == 0, said.err
            return said.out.split()

        both = ["job/default/trainingjob.bert", "job/default/trainingjob.resnet"]

        async def registered() -> bool:
            return sorted(await names()) == both

        await until(registered, "both jobs are supervised")
        assert await names("-l", "team=vision") == ["job/default/trainingjob.resnet"]
        assert await names("-l", "team notin (vision,text)") == []
        assert await names("-n", "kube-system") == []
        table = await run_process("status", "--kubeconfig", admin, "-A")
        assert table.out.split()[:2] == ["NAMESPACE", "JOB"]
        assert "default    trainingjob.bert    Waiting" in table.out

        assert (await run_process("status", "--context", "here", KUBECONFIG=str(admin))).code == 0
        wrong = await run_process("status", "--context", "elsewhere", KUBECONFIG=str(admin))
        assert (wrong.code, "has no context elsewhere" in wrong.err) == (78, True)

        async def told() -> str:
            said = await run_process("history", "resnet", "--kubeconfig", admin)
            assert said.code == 0, said.err
            return said.out if " Waiting" in said.out else ""

        history = await until(told, "the decision is in an Event")
        assert "job/default/trainingjob.resnet  Registered" in history
        assert "read from Kubernetes Events" in history

        plugin = await _as_plugin(tmp_path, admin, "status", "-o", "name")
        assert (plugin.code, sorted(plugin.out.split())) == (0, both), plugin.err
        assert (await _as_plugin(tmp_path, admin, "statsu")).err.startswith("kubectl job-supervisor: unknown command")
    refused = await run_process("status", "-l", "((", "--kubeconfig", admin)
    assert (refused.code, "labels '(('" in refused.err) == (77, True)
