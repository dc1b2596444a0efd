"""Writes to jobs that a queue manages."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest

from servicekit.kubernetes.client import ResourceClient
from supervisor.jobs.mpijob.kind import MPI_JOBS, read_mpi_job
from supervisor.jobs.queues.kueue.workloads import QueuedJobClient


async def test_it_leaves_the_queues_field_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the kind writes beside it is written."""
    written: list[object] = []

    async def merge(_self: object, _read: object, content: Mapping[str, object], *_: object, **__: object) -> None:
        written.append(content)

    async def patch(_self: object, _read: object, operations: Sequence[Mapping[str, object]]) -> None:
        written.append(operations)

    monkeypatch.setattr(ResourceClient, "merge", merge)
    monkeypatch.setattr(ResourceClient, "patch", patch)
    client, job = QueuedJobClient(cast("Any", None), MPI_JOBS, read_mpi_job), cast("Any", None)
    await client.merge(job, {"spec": {"runPolicy": {"suspend": False}, "suspend": True, "replicas": 2}})
    size = {"op": "replace", "path": "/spec/parallelism", "value": 2}
    await client.patch(job, [{"op": "replace", "path": "/spec/suspend", "value": False}, size])
    assert written == [{"spec": {"runPolicy": {}, "replicas": 2}}, [size]]
