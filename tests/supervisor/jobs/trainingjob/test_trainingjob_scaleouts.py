"""Which ScaleOuts are a job's own."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from aiohttp import web

from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.kubernetes.access import Access
from servicekit.kubernetes.client import ResourceClient
from servicekit.kubernetes.server import ApiServer
from supervisor.jobs.kind import ClusterContext, KindContext
from supervisor.jobs.trainingjob.objects import TRAINING_JOBS, read_training_job
from supervisor.jobs.trainingjob.scaleouts import ScaleOuts
from supervisor.store.interface import Snapshot
from tests.supervisor.jobs.trainingjob.trainingjob_objects import (
    OPTED_IN,
    PREFIX,
    State,
    job,
    pod,
    spec,
    state,
    workers,
)


def _growing() -> State:
    """A job that runs with two of its four workers."""
    names = ["bert-worker-0", "bert-worker-1"]
    status = {"phase": "Running", "targetWorkers": names, "currentWorkers": names}
    annotations = {**OPTED_IN, f"{PREFIX}requested-workers": "4"}
    return state(job(status=status, annotations=annotations, asked=spec(2)), [*workers(2), pod("launcher")])


def _scale_out(namespace: str = "team", selected: str = "bert", uid: str = "job-uid") -> dict[str, Any]:
    """One with the supervisor's label, and that uid as its owner's."""
    owner = {"apiVersion": TRAINING_JOBS.api_version, "kind": "TrainingJob", "name": selected, "uid": uid}
    metadata = {"name": "grow-1", "namespace": namespace, "uid": "s", "resourceVersion": "7"}
    return {"metadata": {**metadata, "ownerReferences": [owner]}, "spec": {"selector": {"name": selected}}}


@dataclass
class _ScaleOutServer:
    """An API server that lists these ScaleOuts, and notes which are deleted."""

    scale_outs: list[dict[str, Any]]
    deleted: list[str] = field(default_factory=list)

    async def list(self, _request: web.Request) -> web.Response:
        return web.json_response({"metadata": {"resourceVersion": "100"}, "items": self.scale_outs})

    async def delete(self, request: web.Request) -> web.Response:
        self.deleted.append(request.path)
        return web.json_response({})


async def _nobody() -> Mapping[str, str]:
    return {}


@pytest.fixture
def cluster() -> _ScaleOutServer:
    return _ScaleOutServer([])


@pytest.fixture
async def scale_outs(cluster: _ScaleOutServer) -> AsyncIterator[ScaleOuts]:
    application = web.Application()
    application.router.add_get("/{path:.*}", cluster.list)
    application.router.add_delete("/{path:.*}", cluster.delete)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    server = ApiServer(Access(url=url, namespace="", tls=None, credentials=_nobody), 5.0)
    context = ClusterContext(
        server=server,
        pods=cast("Any", None),
        snapshot=Snapshot,
        may_act=lambda: True,
        on_change=lambda: None,
        clock=Clock(),
        bulkhead=Bulkhead(Clock()),
    )
    unused: Any = None
    client = ResourceClient(server, TRAINING_JOBS, read_training_job)
    yield ScaleOuts(
        KindContext(cluster=context, client=client, wrote=unused, state=unused, namesakes=lambda _name: False)
    )
    await server.close()
    await runner.cleanup()


@pytest.mark.parametrize(
    ("scale_out", "is_the_jobs"),
    [
        (_scale_out(), True),
        (_scale_out(namespace="tenant"), False),
        (_scale_out(selected="another"), False),
        (_scale_out(uid="an earlier job of that name"), False),
    ],
)
async def test_only_a_jobs_own_scaleout_is_in_its_way(
    scale_outs: ScaleOuts, cluster: _ScaleOutServer, scale_out: dict[str, Any], *, is_the_jobs: bool
) -> None:
    """One of another namespace with the job's uid, kept by a finalizer, would forbid its growth and each resume."""
    cluster.scale_outs.append(scale_out)
    await scale_outs.follower.first()
    assert scale_outs.growable(_growing()) == (0 if is_the_jobs else 2)
    assert await scale_outs.gone(_growing()) is not is_the_jobs
    assert [path.rsplit("/", 1)[-1] for path in cluster.deleted] == (["grow-1"] if is_the_jobs else [])


@pytest.mark.parametrize(("namespace", "is_the_jobs"), [("team", True), ("tenant", False)])
async def test_a_scaleout_that_does_not_decode_is_a_jobs_by_its_name(
    scale_outs: ScaleOuts, cluster: _ScaleOutServer, namespace: str, *, is_the_jobs: bool
) -> None:
    """Its operator may go on with it."""
    strange = _scale_out(namespace)
    strange["metadata"]["name"] = "grow-job-uid-7"
    cluster.scale_outs.append({**strange, "status": {"phase": 7}})
    await scale_outs.follower.first()
    assert scale_outs.growable(_growing()) == (0 if is_the_jobs else 2)
    assert await scale_outs.gone(_growing()) is not is_the_jobs
    assert len(cluster.deleted) == is_the_jobs
