"""Installs the chart with the real helm on a control plane of its own, because the chart has cluster-scoped objects."""

import asyncio
import json
import os
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

from tests.chart.chart_rendering import CHART, NAMESPACE, RELEASE, WITH_REGISTRY, RenderingRefused, Values
from tests.testkit.controlplane.api import Api, client
from tests.testkit.controlplane.api import ObjectRefused as ApiRefused
from tests.testkit.controlplane.binaries import Tool, client_path
from tests.testkit.controlplane.namespace import Namespace
from tests.testkit.controlplane.running import ControlPlane
from tests.testkit.waiting import until

PREVIOUS_CHART = Path(__file__).parent / "previous" / "elastic-job-supervisor-0.1.0.tgz"
LINUX = {"kubernetes.io/os": "linux"}
_SECONDS = 120.0
# Each list of the API, but what comes and goes by itself and what is only asked.
_PASSING = {"events", "componentstatuses"}


@dataclass(frozen=True, slots=True)
class Installation:
    api: Api
    nodes: Namespace
    plane: ControlPlane
    home: Path

    async def helm(self, *command: str, values: Values | None = None) -> str:
        """Return helm's output, with the API server's warnings.

        Raises:
            RenderingRefused: It failed.
        """
        return await asyncio.to_thread(self._run, command, values)

    async def install(self, values: Values | None = None, *flags: str, chart: Path = CHART) -> str:
        """As docs/guide/install.md has it; returns when all that runs is Ready."""
        command = ["upgrade", "--install", RELEASE, str(chart), "--wait", "--timeout", f"{_SECONDS:.0f}s"]
        return await self.helm(*command, *flags, values=values or {})

    async def objects(self) -> set[str]:
        """The path of every object in the cluster, once the API server is used to definitions that have changed."""
        return await until(self._objects, "the API server lists everything")

    async def empty(self) -> bool:
        return not (await self.api.get(f"/api/v1/namespaces/{NAMESPACE}/pods"))["items"]

    async def _objects(self) -> set[str]:
        try:
            return {path for kind in await self._kinds() for path in await self._paths(kind)}
        except ApiRefused as refused:
            if refused.status == HTTPStatus.TOO_MANY_REQUESTS:
                return set()
            raise

    async def _kinds(self) -> Sequence[str]:
        """The path of each kind, in the last of the versions that have it."""
        found = dict[tuple[str, str], str]()
        for group in [{"name": "", "versions": []}, *(await self.api.get("/apis"))["groups"]]:
            for version in [f"/apis/{each['groupVersion']}" for each in group["versions"]] or ["/api/v1"]:
                for each in (await self.api.get(version))["resources"]:
                    if "list" in each["verbs"] and each["name"] not in _PASSING:
                        found[group["name"], each["name"]] = f"{version}/{each['name']}"
        return list(found.values())

    async def _paths(self, kind: str) -> Sequence[str]:
        items = (await self.api.get(kind))["items"]
        return [f"{kind}/{each['metadata'].get('namespace', '')}/{each['metadata']['name']}" for each in items]

    def _run(self, command: Sequence[str], values: Values | None) -> str:
        told = [*command, "--namespace", NAMESPACE, *(["--values", "-"] if values is not None else [])]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HELM_")}
        homes = {f"HELM_{kind}_HOME": str(self.home / kind.lower()) for kind in ("CACHE", "CONFIG", "DATA")}
        done = subprocess.run(
            [str(client_path(Tool.HELM)), *told],
            env={**environment, **homes, "KUBECONFIG": str(self.plane.cluster.kubeconfig)},
            input=json.dumps({**WITH_REGISTRY, **(values or {})}),
            capture_output=True,
            text=True,
            timeout=_SECONDS + 30,
            check=False,
        )
        if done.returncode:
            raise RenderingRefused(done.stderr)
        return done.stdout + done.stderr


@asynccontextmanager
async def installation(plane: ControlPlane, home: Path, level: str) -> AsyncIterator[Installation]:
    """A cluster of two nodes without the chart, whose namespace for it enforces and warns at that level."""
    async with client(plane.cluster) as api:
        nodes = Namespace(plane.cluster, api)
        # Tests of one process have one cluster.
        if not (await api.get("/api/v1/nodes"))["items"]:
            for name in ("a", "b"):
                await nodes.node(name, labels=LINUX)
            await api.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        labels = {f"pod-security.kubernetes.io/{mode}": level for mode in ("enforce", "warn")}
        await api.patch(f"/api/v1/namespaces/{NAMESPACE}", {"metadata": {"labels": labels}})
        present = Installation(api, nodes, plane, home)
        await present.helm("uninstall", RELEASE, "--ignore-not-found", "--wait")
        await until(present.empty, "the pods of the test before are gone")
        yield present


def rights(rules: Sequence[Any]) -> set[tuple[str, str, str, str]]:
    """Group, resource or path, its name or nothing, and verb of each right that rules give."""
    found: set[tuple[str, str, str, str]] = set()
    for rule in rules:
        names = rule.get("resourceNames") or [""]
        for verb in rule["verbs"]:
            found |= {("", path, "", verb) for path in rule.get("nonResourceURLs") or []}
            found |= {
                (group, resource, name, verb)
                for group in rule.get("apiGroups") or []
                for resource in rule.get("resources") or []
                for name in names
            }
    return found
