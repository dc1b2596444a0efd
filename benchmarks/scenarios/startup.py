"""The start of a supervisor on a cluster that has many nodes and pods already."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import audit
from benchmarks.harness.inventory import Inventory, InventoryShape, inventory
from benchmarks.harness.job_watch import JobWatch, watching
from benchmarks.job_history import first_delay, is_stopping
from benchmarks.results import Figure, Row, ScenarioOutcome, Unit
from supervisor.domain.ids import JobName
from tests.testkit.controlplane.binaries import BinaryNotBuilt, NoGo

_TITLE = "Start with many nodes and pods"
_PATIENCE_SECONDS = 300.0
_SETTLE_SECONDS = 15.0
"""Longer than the supervisor's pause between two checks whether it can return memory."""

METHOD = """\
etcd, API server and the supervisor are real; nothing runs the objects. A node has eight opted-in pods, and 64 pods are
an Indexed Job. *Synced* is from the start of the process until it has read everything, *serves* until agents can
connect. *Decided* is until all jobs are in their resources. The second supervisor finds these resources, and a node
with the taint of a reclaim, which was announced while none ran; there *decided* is until its job's STOP is in the job's
resource, as a watcher sees it. *Lists* counts pages of at most 500 objects, *writes* the requests that change
something. *RSS* is that of the supervisor 15 s later, *peak* its highest since the start. API server and supervisor
share two cores."""

FULL = (500, 1250, 5000)
SHORT = (16,)

Decided = Callable[[JobWatch, float], Coroutine[Any, Any, float]]
"""Waits for what a start has to decide, and returns the seconds from an instant until then."""


async def run(root: Path, *, short: bool) -> ScenarioOutcome:
    """Measure everything on one control plane, or nothing if there is none."""
    try:
        return await measure(root, SHORT if short else FULL)
    except (NoGo, BinaryNotBuilt) as reason:
        return ScenarioOutcome(scenario="startup", title=_TITLE, method=f"Not measured: {reason}.", rows=())


async def measure(root: Path, sizes: Sequence[int], settle: float = _SETTLE_SECONDS) -> ScenarioOutcome:
    """Measure both starts with each number of nodes.

    Raises:
        NoGo: There is no control plane, and none can be built here.
        BinaryNotBuilt: It is not built yet.
    """
    rows: list[Row] = []
    shape = InventoryShape()
    async with inventory(root, shape) as world:
        for job, nodes in enumerate(sizes):
            await world.grow(nodes)
            case = f"{nodes:,} nodes, {nodes * shape.pods_a_node:,} pods"
            rows.append(await _measure_start(world, f"{case}: first start", settle, _known(world.jobs)))
            noticed = await world.announce(job)
            rows.append(await _measure_start(world, f"{case}: started again", settle, _stopped(noticed)))
    return ScenarioOutcome(scenario="startup", title=_TITLE, method=METHOD, rows=tuple(rows))


async def _measure_start(world: Inventory, case: str, settle: float, until_decided: Decided) -> Row:
    server, job_watch = world.server, JobWatch(world.api)
    async with watching(job_watch):
        since, began = time.time(), time.monotonic()
        server.launch()
        await server.until_standby()
        synced = time.monotonic()
        await server.until_serving()
        serving = time.monotonic()
        decided = await until_decided(job_watch, began)
        ended, used = time.time(), server.usage()
        await asyncio.sleep(settle)
        settled = server.usage()
    await server.stop()
    asked = audit.within(audit.requests(world.audit), since, ended)
    lists = audit.kinds(each for each in asked if each.what.startswith("list "))
    return Row(
        case=case,
        figures=(
            Figure(label="synced", value=synced - began, unit=Unit.SECONDS),
            Figure(label="serves", value=serving - began, unit=Unit.SECONDS),
            Figure(label="decided", value=decided, unit=Unit.SECONDS),
            Figure(label="CPU", value=used.cpu_seconds, unit=Unit.SECONDS),
            Figure(label="RSS", value=settled.resident_bytes, unit=Unit.BYTES),
            Figure(label="peak", value=settled.peak_bytes, unit=Unit.BYTES),
            Figure(label="lists", value=lists.total(), unit=Unit.COUNT),
            Figure(label="of pods", value=lists["list pods"], unit=Unit.COUNT),
            Figure(label="writes", value=sum(each.writes for each in asked), unit=Unit.COUNT),
        ),
    )


def _known(jobs: Sequence[JobName]) -> Decided:
    async def wait(job_watch: JobWatch, began: float) -> float:
        await job_watch.until(dict.fromkeys(jobs, "Running"), _PATIENCE_SECONDS)
        return time.monotonic() - began

    return wait


def _stopped(job: JobName) -> Decided:
    async def wait(job_watch: JobWatch, began: float) -> float:
        await job_watch.until({job: "Stopping"}, _PATIENCE_SECONDS)
        return first_delay(job_watch.snapshots, job, began, is_stopping)

    return wait
