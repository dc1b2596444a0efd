from collections.abc import AsyncIterator

import msgspec
import pytest

from servicekit.kubernetes.client import Resource, ResourceClient, Selection
from servicekit.kubernetes.errors import ConflictError, NotFoundError
from servicekit.kubernetes.objects import Metadata, ObjectKey
from servicekit.kubernetes.server import ApiServer
from tests.testkit.controlplane.namespace import Namespace
from tests.testkit.controlplane.running import RunningCluster

_KIND = Resource(group="", version="v1", kind="ConfigMap", plural="configmaps", namespaced=True)


class _CollectedConfigMap(msgspec.Struct, frozen=True):
    metadata: Metadata
    data: dict[str, str] = {}


def _decode(data: bytes | msgspec.Raw) -> _CollectedConfigMap:
    return msgspec.json.decode(data, type=_CollectedConfigMap)


@pytest.fixture
async def server(cluster: RunningCluster) -> AsyncIterator[ApiServer]:
    one = await ApiServer.connect(str(cluster.kubeconfig), 10.0)
    yield one
    await one.close()


def _collection(server: ApiServer, namespace: Namespace, labels: str = "") -> ResourceClient[_CollectedConfigMap]:
    return ResourceClient(server, _KIND, _decode, Selection(namespace=namespace.name, labels=labels))


async def test_a_selection_is_all_that_is_listed(server: ApiServer, namespace: Namespace) -> None:
    maps = _collection(server, namespace)
    for name in ("a", "b"):
        await maps.create(ObjectKey(namespace.name, name), {"data": {"k": name}}, labels={"is": name})
    selected = (await _collection(server, namespace, "is=b").list()).objects
    assert [(one.metadata.name, one.data) for one in selected] == [("b", {"k": "b"})]
    assert {"a", "b"} <= {one.metadata.name for one in (await maps.list())[0]}


async def test_a_change_is_merged_into_what_others_changed(server: ApiServer, namespace: Namespace) -> None:
    """What is not named stays, also where it is newer than what was read."""
    maps = _collection(server, namespace)
    key = ObjectKey(namespace.name, "one")
    read = await maps.create(key, {"data": {"mine": "1"}})
    await maps.merge(read, {"data": {"theirs": "2"}})
    merged = await maps.merge(read, {"data": {"mine": None, "new": "3"}}, metadata={"labels": {"l": "v"}})
    assert merged.data == {"theirs": "2", "new": "3"}


async def test_another_object_of_the_name_is_left_alone(server: ApiServer, namespace: Namespace) -> None:
    maps = _collection(server, namespace)
    key = ObjectKey(namespace.name, "one")
    first = await maps.create(key, {"data": {"k": "first"}})
    await maps.merge(first, {"data": {"k": "later"}})
    await maps.delete_unconditionally(first)
    with pytest.raises(NotFoundError):
        await maps.delete_unconditionally(first)
    await maps.create(key, {"data": {"k": "second"}})
    with pytest.raises(ConflictError):
        await maps.merge(first, {"data": {"k": "third"}})
    with pytest.raises(ConflictError):
        await maps.delete_unconditionally(first)
    assert (await maps.get(key)).data == {"k": "second"}
