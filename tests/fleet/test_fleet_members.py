"""`job-supervisor -M` at a real hub, with the rights of whoever asks and no kubeconfig of a member."""

from pathlib import Path
from typing import Any

import pytest

from tests.controlplane.kinds.operator_world import world
from tests.fleet.fleet_world import ONE, PYTORCH_JOBS, TWO, FleetTeam
from tests.job_supervisor.cli.cli_running import Said, run_process
from tests.testkit.controlplane.hub import WORK
from tests.testkit.waiting import until

pytestmark = pytest.mark.long

_USER = "viewer"
_AT_HUB = (
    {"apiGroups": ["cluster.karmada.io"], "resources": ["clusters"], "verbs": ["list"]},
    {"apiGroups": ["cluster.karmada.io"], "resources": ["clusters/proxy"], "verbs": ["get"]},
    {"apiGroups": ["work.karmada.io"], "resources": ["resourcebindings"], "verbs": ["list"]},
)
"""What the page of the command says that it takes at the hub."""
_IN_MEMBER = (
    {"apiGroups": ["job-supervisor.kube-ai.io"], "resources": ["supervisedjobs", "reclaimnotices"], "verbs": ["list"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]},
    {"apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["list"]},
)
"""And in each member."""


async def test_a_user_of_the_hub_sees_the_jobs_of_the_members_that_he_may_read(jobs: FleetTeam, tmp_path: Path) -> None:
    """The hub asks in his name: it names the member in which he has no rights. What it holds back is queued."""
    hub, member = jobs.hub.namespace, jobs.members[ONE]
    await hub.account(_USER, cluster_rules=_AT_HUB)
    await member.namespace.account(_USER, cluster_rules=_IN_MEMBER)
    kubeconfig = await hub.kubeconfig(_USER, tmp_path / "hub.kubeconfig")

    async def asked(*words: str) -> Said:
        return await run_process(*words, "-M", "-n", jobs.name, "--kubeconfig", kubeconfig)

    await member.nodes(2)
    await jobs.propagate([ONE])
    async with world(jobs.fleet.members[ONE], member, tmp_path / "one") as one:
        await jobs.hub.submit("j", 2)
        await until(lambda: member.get("j"), "the job is in the member")
        await member.runs("j", 2)
        await one.decided("j", "Running", run=1, workers=2)
        await _hold(jobs, "k")
        status = (await asked("status", "-o", "json")).json
        assert {(each["cluster"], each["job"], each["phase"]) for each in status["jobs"]} == {
            (ONE, f"{jobs.name}/pytorchjob.j", "Running"),
            ("-", f"{jobs.name}/pytorchjob.k", "Queued"),
        }
        assert any(each.startswith(f"cluster {TWO}: You may not list") for each in status["unseen"]), status["unseen"]
        explained = await asked("explain", "j")
        assert f"In cluster {ONE}:\n{jobs.name}/pytorchjob.j is Running" in explained.out
        past = (await asked("history", "j", "-o", "json")).json
        assert {each["cluster"] for each in past["entries"]} == {ONE}
        nodes = (await asked("nodes", "-o", "json")).json["nodes"]
        assert (ONE, await one.node_of("j", "worker-0")) in {(each["cluster"], each["node"]) for each in nodes}


async def _hold(jobs: FleetTeam, name: str) -> None:
    """Makes the binding of a PyTorchJob as a queue at the hub makes it: in no cluster, and not to be scheduled."""
    resource = {**PYTORCH_JOBS, "namespace": jobs.name, "name": name}
    spec: dict[str, Any] = {"resource": resource, "replicas": 4, "suspension": {"scheduling": True}}
    kind = {"apiVersion": "work.karmada.io/v1alpha2", "kind": "ResourceBinding"}
    path = f"{WORK}/v1alpha2/namespaces/{jobs.name}/resourcebindings"
    await jobs.api.create(path, {**kind, "metadata": {"name": f"{name}-pytorchjob"}, "spec": spec})
