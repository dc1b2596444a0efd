"""`job-supervisor` on a cluster: with the rights of whoever asks, and no token of ours."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from simulator.services import ServedJobPlan
from tests.controlplane.ingest.ingest_cluster import EVENTS, IngestScene
from tests.job_supervisor.cli.cli_running import Said, run_process
from tests.testkit.controlplane.credentials import write_kubeconfig

# Each asks by processes of its own, twenty and more: to begin with.
pytestmark = pytest.mark.long

_RBAC = "/apis/rbac.authorization.k8s.io/v1"
_OURS = "job-supervisor.kube-ai.io"

VIEWS = [{"apiGroups": [_OURS], "resources": ["supervisedjobs", "reclaimnotices"], "verbs": ["get", "list"]}]
DRILLS = [
    {"apiGroups": [""], "resources": ["pods", "nodes"], "verbs": ["get", "list"]},
    {"apiGroups": [""], "resources": ["events"], "verbs": ["create"]},
]


async def _user(here: IngestScene, name: str, directory: Path, rules: Sequence[Mapping[str, Any]]) -> Path:
    """The kubeconfig of somebody with just these rights in the whole cluster."""
    api = here.api
    accounts = "/api/v1/namespaces/default/serviceaccounts"
    await api.create(accounts, {"metadata": {"name": name}})
    await api.create(f"{_RBAC}/clusterroles", {"metadata": {"name": name}, "rules": rules})
    subject = {"kind": "ServiceAccount", "name": name, "namespace": "default"}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
    await api.create(
        f"{_RBAC}/clusterrolebindings", {"metadata": {"name": name}, "roleRef": role, "subjects": [subject]}
    )
    token = (await api.create(f"{accounts}/{name}/token", {"spec": {}}))["status"]["token"]
    path, cluster = directory / f"{name}.kubeconfig", here.place.plane.cluster
    write_kubeconfig(path, cluster.url, cluster.ca, token)
    return path


async def test_drills_of_nodes_and_pods_are_held_with_ones_own_rights(here: IngestScene, tmp_path: Path) -> None:
    """A node whose agent says that it is clear, and an opted-in pod; each is shown, and ended."""
    whole = await _user(here, "cli-operator", tmp_path, [*VIEWS, *DRILLS])
    await here.node("n1")
    await here.pod("p", node="n1")
    async with here.supervisor(tmp_path / "world", "n1"):
        begun = await run_process("simulate", "n1", "--lead", "600", "--yes", "--kubeconfig", whole)
        assert begun.code == 0, begun.err
        assert "No supervised job is on node n1" in begun.out
        notice = await here.notice("n1", "simulated")
        assert notice["status"]["message"].startswith("A drill, held by ")
        pod = await run_process("simulate", "pod/p", "-n", "default", "--lead", "600", "--yes", "--kubeconfig", whole)
        assert pod.code == 0, pod.err
        one = await run_process("simulate", "--end", "pod/p", "-n", "default", "--kubeconfig", whole)
        assert (one.code, one.out) == (0, "Ended the drill on pod default/p.\n")
        await here.notice("default/p", "simulated", "withdrawn")
        shown = await run_process("status", "--kubeconfig", whole)
        assert shown.code == 0, shown.err
        assert "node/n1" in shown.out
        assert "simulated (drill)" in shown.out
        assert "default/p" not in shown.out
        assert "Not visible: which agents and processes are connected" in shown.out
        ended = await run_process("simulate", "--end", "--kubeconfig", whole)
        assert (ended.code, ended.out) == (0, "Ended the drill on node n1.\n")
        await here.notice("n1", "simulated", "withdrawn")


async def test_who_may_look_and_not_write_events_holds_no_drill(here: IngestScene, tmp_path: Path) -> None:
    """The sentence says which right is missing; who may see nothing is told that, too."""
    viewer = await _user(here, "cli-viewer", tmp_path, [*VIEWS, DRILLS[0]])
    stranger = await _user(here, "cli-stranger", tmp_path, [])
    await here.node("n1")
    async with here.supervisor(tmp_path / "world", "n1"):
        looked = await run_process("status", "--kubeconfig", viewer, "-o", "json")
        assert looked.code == 0, looked.err
        denied = await run_process("simulate", "n1", "--yes", "--kubeconfig", viewer)
        assert denied.code == 77
        assert denied.err.startswith("You may not create Events in the namespace default: ")
        nothing = await run_process("status", "--kubeconfig", stranger)
        assert nothing.code == 77
        assert nothing.err.startswith("You may not list SupervisedJobs: ")
        assert "--namespace" in nothing.err
        assert not [one for one in await here.notices() if one["spec"]["source"] == "simulated"]


async def test_what_cannot_be_drilled_is_said(here: IngestScene) -> None:
    admin = here.place.plane.cluster.kubeconfig
    await here.pod("plain", opted_in=False)

    async def tried(*subject: str) -> Said:
        return await run_process("simulate", *subject, "--yes", "--kubeconfig", admin)

    missing = await tried("node/n9")
    assert (missing.code, missing.err) == (66, "There is no node n9.\n")
    nowhere = await tried("pod/p9", "-n", "default")
    assert (nowhere.code, nowhere.err) == (66, "There is no pod p9 in the namespace default.\n")
    plain = await tried("pod/default/plain")
    assert plain.code == 64
    assert "is not opted in" in plain.err


async def test_a_drill_that_no_supervisor_takes_in_says_so(here: IngestScene) -> None:
    """After a while in which one would have; it asks whether one leads."""
    await here.node("n1")
    alone = await run_process("simulate", "n1", "--yes", "--kubeconfig", here.place.plane.cluster.kubeconfig)
    assert alone.code == 75
    assert "Does one lead?" in alone.err


@pytest.mark.brief
async def test_jobs_are_explained_from_what_lies_in_the_cluster(here: IngestScene, tmp_path: Path) -> None:
    """As the supervisor that leads would say it, but for what only its streams know."""
    viewer = await _user(here, "cli-reader", tmp_path, VIEWS)
    await here.node("n1")
    async with here.supervisor(tmp_path / "world", "n1", "n2") as one:
        job = one.start_job(ServedJobPlan(min_workers=1, max_workers=2, steps=2000, step_seconds=0.05))
        await one.until_training(job, workers=2)
        said = await run_process("explain", job.plan.name, "--kubeconfig", viewer)
        assert said.code == 0, said.err
        assert f"{job.plan.name} is Running" in said.out
        assert "Run 1 is running on 2 hosts. The job asks for 1 to 2" in said.out
        assert "Not visible: which agents and processes are connected" in said.out
        unknown = await run_process("explain", "nobody", "--kubeconfig", viewer)
        assert unknown.code == 66


@pytest.mark.brief
async def test_a_drill_without_the_command(here: IngestScene, tmp_path: Path) -> None:
    node = await here.node("gpu-3")
    async with here.supervisor(tmp_path / "world"):
        annotations = {"job-supervisor.kube-ai.io/simulated-lead-seconds": "120"}
        involved = {"apiVersion": "v1", "kind": "Node", "name": "gpu-3", "uid": node["metadata"]["uid"]}
        event = {
            "metadata": {"generateName": "drill-", "namespace": "default", "annotations": annotations},
            "involvedObject": involved,
            "reason": "SimulatedReclaim",
            "message": "A drill",
            "type": "Normal",
        }
        await here.api.create(EVENTS, event)
        assert (await here.notice("gpu-3", "simulated"))["status"]["message"] == "A drill"
