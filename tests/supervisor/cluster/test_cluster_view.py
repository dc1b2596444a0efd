"""The cluster view reports exactly the changes that matter."""

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from msgspec.structs import replace as with_fields

from servicekit.kubernetes.objects import Metadata
from supervisor.cluster.objects import Node, Pod
from supervisor.domain.capacity import UNKNOWN_MACHINE
from supervisor.domain.ids import Host
from tests.supervisor.cluster.cluster_scene import ClusterScene, cluster_scene


@pytest.fixture
async def scene() -> AsyncIterator[ClusterScene]:
    async with cluster_scene() as empty:
        yield empty


async def test_a_kubelets_sign_of_life_is_no_change(scene: ClusterScene) -> None:
    """Of 500 nodes they had all jobs planned again dozens of times a second; what is known is the newest state."""
    told: list[Node | None] = []
    scene.view.nodes_changed.append(lambda _, after: told.append(after))
    first = scene.node("n1")
    version = scene.view.version
    again = scene.node("n1")
    assert (scene.view.version, told) == (version, [first])
    assert scene.view.node("n1") == again
    assert scene.node("n1", cordoned=True) == told[-1]
    assert scene.view.version > version


async def test_a_pod_is_another_one_with_another_uid(scene: ClusterScene) -> None:
    """However much it is like the one before; what it takes is counted once."""
    told: list[Pod | None] = []
    scene.view.pods_changed.append(lambda _, after: told.append(after))
    pod = scene.pod("a", "n1")
    newest = scene.now(pod)
    assert told == [pod]
    assert scene.view.pod(pod.metadata.uid) == newest
    assert scene.view.taken("n1")["pods"] == 1000
    other = scene.now(replace(pod, metadata=_with_uid(pod, "uid-other")))
    assert told == [pod, other]
    assert scene.view.pod(pod.metadata.uid) is None
    assert scene.view.taken("n1")["pods"] == 1000


async def test_a_machine_is_what_the_newest_labels_of_its_node_say(scene: ClusterScene) -> None:
    """They are read once, and again when they have changed; a node that is gone has no machine."""
    zone = "topology.kubernetes.io/zone"
    scene.node("n1", labels={zone: "a"})
    first = scene.view.machine(Host("n1"))
    scene.node("n1", cordoned=True, labels={zone: "a"})
    assert scene.view.machine(Host("n1")) is first
    last = scene.node("n1", labels={zone: "b"})
    assert (first.zone, scene.view.machine(Host("n1")).zone) == ("a", "b")
    scene.node_gone(last)
    assert scene.view.machine(Host("n1")) is UNKNOWN_MACHINE


def _with_uid(pod: Pod, uid: str) -> Metadata:
    return with_fields(pod.metadata, uid=uid)
