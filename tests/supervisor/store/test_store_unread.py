"""Custom resources that do not decode: they are counted, hide no others, and are not overwritten."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from aiohttp import web

from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.kubernetes.access import Access
from servicekit.kubernetes.server import ApiServer
from supervisor.store.codec import JOBS, NOTICE_CODEC, NOTICES, job_codec
from supervisor.store.interface import StoreUnavailableError
from supervisor.store.kubernetes import KubernetesStore, KubernetesStoreOptions
from tests.supervisor.decide.decide_builders import T0, notice, running_job, waiting_job
from tests.supervisor.store.store_behaviour import put_job, to

_PLURALS = (JOBS.plural, NOTICES.plural)


class _ResourceCluster:
    """An API server that keeps custom resources, as far as the store needs it."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.version = 10

    def put(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        self.version += 1
        namespace = path.split("/")[5] if "/namespaces/" in path else ""
        name = path.rsplit("/", 1)[-1]
        metadata = {"name": name, "namespace": namespace, "uid": name, "resourceVersion": str(self.version)}
        self.objects[path] = {**body, "metadata": metadata}
        return self.objects[path]

    async def handle(self, request: web.Request) -> web.StreamResponse:
        path = request.path.replace("v1alpha2", "v1alpha1")
        plural = next(each for each in _PLURALS if each in path)
        if request.method == "POST":
            body = await request.json()
            path = f"{path}/{body['metadata']['name']}"
            if path in self.objects:
                return web.json_response({"message": "it exists", "code": 409}, status=409)
            return web.json_response(self.put(path, {part: body[part] for part in ("spec", "status") if part in body}))
        if request.method == "PATCH":
            path = path.removesuffix("/status")
            changes = {each["path"].strip("/"): each["value"] for each in await request.json()}
            if changes.pop("metadata/resourceVersion") != self.objects[path]["metadata"]["resourceVersion"]:
                return web.json_response({"message": "it has changed", "code": 409}, status=409)
            return web.json_response(self.put(path, {**self.objects[path], **changes}))
        if path in self.objects:
            return web.json_response(self.objects[path])
        items = [each for name, each in self.objects.items() if f"/{plural}/" in name]
        return web.json_response({"metadata": {"resourceVersion": str(self.version)}, "items": items})


async def _nobody() -> Mapping[str, str]:
    return {}


@asynccontextmanager
async def _serving(cluster: _ResourceCluster) -> AsyncIterator[KubernetesStore]:
    """A store that has read the cluster, and whose changes are made; nothing is watched."""
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", cluster.handle)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    server = ApiServer(Access(url=url, namespace="home", tls=None, credentials=_nobody), 5.0)
    store = KubernetesStore(server, KubernetesStoreOptions(), Clock(), Bulkhead(Clock()))
    await store.sync()
    queues = [asyncio.create_task(each.run()) for each in (store._notices, store._jobs)]
    try:
        yield store
    finally:
        for queue in queues:
            queue.cancel()
        await asyncio.gather(*queues, return_exceptions=True)
        await store.close()
        await runner.cleanup()


@pytest.fixture
def cluster() -> _ResourceCluster:
    """It has a job and a notice that another version wrote, and one of each that this version knows."""
    found, codec = _ResourceCluster(), job_codec("home", lambda: T0, {})
    root = f"/apis/{JOBS.group}/{JOBS.version}"
    for job, phase in ((running_job(), "Flying"), (waiting_job(name="plain"), None)):
        spec, status = codec.encode(job, None, 1)
        status["decision"] |= {} if phase is None else {"phase": phase}
        key = codec.object_key(job, ())
        found.put(f"{root}/namespaces/{key.namespace}/{JOBS.plural}/{key.name}", {"spec": spec, "status": status})
    for number, state in ((1, "sold"), (2, None)):
        spec, status = NOTICE_CODEC.encode(notice(number), None, 1)
        status |= {} if state is None else {"state": state}
        name = NOTICE_CODEC.object_key(notice(number), ()).name
        found.put(f"{root}/{NOTICES.plural}/{name}", {"spec": spec, "status": status})
    return found


async def test_the_store_opens_and_shows_what_it_understands(cluster: _ResourceCluster) -> None:
    async with _serving(cluster) as store:
        assert set(store.snapshot().jobs) == {waiting_job(name="plain").name}
        assert set(store.snapshot().notices) == {notice(2).id}
        assert store.unread == {JOBS.plural: 1, NOTICES.plural: 1}


async def test_a_job_that_is_observed_again_does_not_overwrite_its_resource(cluster: _ResourceCluster) -> None:
    """The refusal names it; other jobs are stored, and so is this one once a person has deleted the resource."""
    before = msgspec.json.encode(cluster.objects)
    async with _serving(cluster) as store:
        with pytest.raises(StoreUnavailableError, match=r"standalone\.job does not decode: delete it"):
            await put_job(store, running_job())
        assert msgspec.json.encode(cluster.objects) == before
        await put_job(store, waiting_job(name="other"))
        assert await store.prune(T0 + 1e9) == 0
        del cluster.objects[next(path for path in cluster.objects if path.endswith("/standalone.job"))]
        await store.sync()
        await put_job(store, running_job())
        assert store.unread[JOBS.plural] == 0
        assert len(store.snapshot().jobs) == 3


async def test_a_notice_that_is_reported_again_is_stored_beside_its_resource(cluster: _ResourceCluster) -> None:
    """Nothing may keep a reclaim from being acted on, and the next change finds it there."""
    async with _serving(cluster) as store:
        await store.put_notice(notice(1).id, to(notice(1)))
        assert store.snapshot().notices[notice(1).id] == notice(1)
        assert store.unread[NOTICES.plural] == 1
    names = sorted(path.rsplit("/", 1)[-1] for path in cluster.objects if f"/{NOTICES.plural}/" in path)
    strange = NOTICE_CODEC.object_key(notice(1), ()).name
    assert set(names) == {strange, f"{strange}-again", NOTICE_CODEC.object_key(notice(2), ()).name}
    async with _serving(cluster) as store:
        assert store.snapshot().notices[notice(1).id] == notice(1)
