"""The label by which the Service finds the leader, and the roles under which all of this works."""

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from supervisor.leadership.elected import LABEL
from tests.controlplane.leader.leader_replicas import LeaderReplicas
from tests.testkit.controlplane.installed import OWN_RULES, RULES, InstalledPlace
from tests.testkit.controlplane.namespace import Namespace
from tests.testkit.waiting import until

pytestmark = pytest.mark.long

OURS = {"app.kubernetes.io/name": "elastic-job-supervisor", "app.kubernetes.io/instance": "ours"}


class LabelledPods:
    """Pods of supervisors in a namespace of the test's own; nothing runs in them."""

    def __init__(self, place: InstalledPlace, namespace: Namespace) -> None:
        self._api = place.api
        self.namespace = namespace

    async def make(self, name: str, labels: Mapping[str, str]) -> None:
        container = {"name": "main", "image": "none"}
        pod = {"metadata": {"name": name, "labels": dict(labels)}, "spec": {"containers": [container]}}
        await self._api.create(f"{self.namespace.path}/pods", pod)

    async def labelled(self) -> set[str]:
        pods = await self._api.get(f"{self.namespace.path}/pods", labelSelector=f"{LABEL}=true")
        return {each["metadata"]["name"] for each in pods["items"]}

    async def become(self, *names: str) -> None:
        async def so() -> bool:
            return await self.labelled() == set(names)

        await until(so, f"the label on {names}")

    async def strip(self, name: str) -> Any:
        return await self._api.patch(f"{self.namespace.path}/pods/{name}", {"metadata": {"labels": {LABEL: None}}})


@pytest.fixture
async def pods(here: InstalledPlace) -> LabelledPods:
    """None yet, in a namespace whose supervisors may do what docs/kubernetes/permissions.md lists, and nothing else."""
    namespace = Namespace(here.plane.cluster, here.api)
    await here.api.create("/api/v1/namespaces", {"metadata": {"name": namespace.name}})
    # Nobody runs here who would make it, and no pod can be made without.
    await here.api.create(f"{namespace.path}/serviceaccounts", {"metadata": {"name": "default"}})
    await namespace.account("supervisor", OWN_RULES, RULES)
    return LabelledPods(here, namespace)


@pytest.fixture
async def replicas(here: InstalledPlace, pods: LabelledPods, tmp_path: Path) -> AsyncIterator[LeaderReplicas]:
    kubeconfig = await pods.namespace.kubeconfig("supervisor", tmp_path / "kubeconfig")
    async with LeaderReplicas.on(here, tmp_path, kubeconfig) as all_of_them:
        yield all_of_them


@pytest.mark.brief
async def test_the_leader_alone_has_the_label(pods: LabelledPods, replicas: LeaderReplicas) -> None:
    """It moves with the leadership, also from one who was killed; other installations keep theirs."""
    for name in ("one", "two", "three"):
        await pods.make(name, OURS)
    await pods.make("theirs", {**OURS, "app.kubernetes.io/instance": "theirs", LABEL: "true"})
    first = await replicas.start(pod_name="one")
    await pods.become("one", "theirs")
    second = await replicas.start(serving=False, pod_name="two")
    await first.kill()
    await pods.become("two", "theirs")
    third = await replicas.start(serving=False, pod_name="three")
    second.process.terminate()
    await pods.become("three", "theirs")
    assert await second.ended() == 0
    third.process.terminate()
    assert await third.ended() == 0
    assert await pods.labelled() == {"theirs"}
    refused = [line for one in replicas.all for line in one.said() if "forbidden" in str(line)]
    assert refused == []


async def test_a_label_that_a_person_takes_away_comes_back(pods: LabelledPods, replicas: LeaderReplicas) -> None:
    """The Service would find nobody."""
    await pods.make("one", OURS)
    await replicas.start(pod_name="one")
    await pods.become("one")
    await pods.strip("one")
    await pods.become("one")


async def test_a_leader_without_its_pod_leads_nevertheless(pods: LabelledPods, replicas: LeaderReplicas) -> None:
    first = await replicas.start(pod_name="missing")
    await pods.make("missing", OURS)
    await pods.become("missing")
    assert first.process.poll() is None


async def test_without_the_right_to_look_at_the_lease_it_ends_with_a_sentence(
    here: InstalledPlace, pods: LabelledPods, tmp_path: Path
) -> None:
    await pods.namespace.account("narrow", (), RULES)
    kubeconfig = await pods.namespace.kubeconfig("narrow", tmp_path / "narrow")
    async with LeaderReplicas.on(here, tmp_path, kubeconfig) as replicas:
        with pytest.raises(AssertionError, match="cannot read the lease job-supervisor: "):
            await replicas.start()
        assert "Traceback" not in replicas.all[0].log.read_text()
        assert await replicas.all[0].ended() == 1
