"""State keepers on a real node: pods of our image in the node's memory, reached through a port of the node."""

import json
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.chart import chart_page as page
from tests.chart.chart_rendering import NAMESPACE
from tests.node.node_running import ADDRESS
from tests.node.node_world import JOBS, NodeWorld
from tests.testkit.waiting import until

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(300), pytest.mark.long]
_KEEPERS = "app.kubernetes.io/component=keeper"
_PORT = 8476
_SUPERVISORS = 2
_ROOM, _PART = 64 << 20, 8 << 20
_ENABLED = "--reuse-values --set keeper.enabled=true --set keeper.bytes=64Mi"
_SCRIPT = Path(__file__).with_name("node_keeping.py")
_STOPPED = "kubectl -n {namespace} exec {pod} -- python3 -c 'import os, signal; os.kill(1, signal.SIGTERM)'"


@pytest_asyncio.fixture(loop_scope="session")
async def keeper(here: NodeWorld) -> AsyncIterator[str]:
    """The name of a ready keeper's pod. Afterwards the installation is again that of the install page."""
    [install] = [line for line in page.commands(page.INSTALL) if line.startswith("helm upgrade ")]
    rollouts = [line for line in page.commands(page.INSTALL) if " rollout " in line]
    for line in (f"{install} {_ENABLED}", *rollouts):
        await here.follow(line)
    await here.ready(_SUPERVISORS)  # One that ends still shapes new pods, and knows of no keeper.
    yield await _ready(here)
    for line in (install, *rollouts):
        await here.follow(line)


async def test_a_pod_keeps_a_part_in_the_memory_of_its_node(here: NodeWorld, keeper: str) -> None:
    """At the address that the webhook gives it, with its own token. The keeper's container may restart."""
    home = await here.start("keeps", ("python3", "-c", _SCRIPT.read_text(encoding="utf-8")))
    assert await _told(home / "kept") == {"keeper": f"{ADDRESS}:{_PORT}", "room": _ROOM, "whole": True}
    [kept] = await _lines(here, keeper, "part.kept")
    assert (kept["tenant"], kept["bytes"]) == (JOBS, _PART)
    [refused] = await _lines(here, keeper, "keeper.refused")
    assert (refused["code"], refused["tenant"]) == ("bad_token", "")
    sys.stdout.write(f"towards the keeper of its node, the pod has the address {refused['peer']}\n")

    await here.follow(_STOPPED.format(namespace=NAMESPACE, pod=keeper))
    assert await _ready(here, restarts=1) == keeper
    (home / "ask-0").touch()
    assert await _told(home / "fetched-0") == {"whole": True}
    [recovered] = await _lines(here, keeper, "keeper.recovered")
    assert (recovered["parts"], recovered["bytes"]) == (1, _PART)


async def _ready(here: NodeWorld, restarts: int = 0) -> str:
    """Returns the name of the keeper's pod, once its container has restarted so often and is ready."""

    async def ready() -> str:
        for pod in await here.pods(NAMESPACE, _KEEPERS):
            [container] = pod["status"].get("containerStatuses") or [{}]
            if container.get("ready") and container["restartCount"] == restarts:
                return str(pod["metadata"]["name"])
        return ""

    return await until(ready, "the keeper is ready")


async def _told(path: Path) -> Mapping[str, Any]:
    async def is_there() -> bool:
        return path.exists()  # noqa: ASYNC240 - a file beside us

    await until(is_there, f"the pod writes {path.name}")
    told: Mapping[str, Any] = json.loads(_content(path))
    return told


def _content(path: Path) -> bytes:
    return path.read_bytes()


async def _lines(here: NodeWorld, pod: str, event: str) -> list[dict[str, Any]]:
    """The lines of that event in the log of the keeper's present container."""
    log = await here.follow(f"kubectl -n {NAMESPACE} logs {pod} --tail=-1")
    return [line for line in map(json.loads, log.splitlines()) if line["event"] == event]
