"""Runs the chart's containers as local processes, because kwok runs no containers."""

import asyncio
import base64
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.chart.chart_rendering import NAMESPACE, RELEASE, environment
from tests.controlplane.chart.chart_cluster import Installation
from tests.node_agent.agent_process import AgentProcess, agent
from tests.testkit.controlplane.credentials import write_kubeconfig
from tests.testkit.waiting import until

AGENT = f"{RELEASE}-agent"
HERE = f"/api/v1/namespaces/{NAMESPACE}"
_APPS = f"/apis/apps/v1/namespaces/{NAMESPACE}"
_PATIENCE_SECONDS = 60.0
_ANY_PORT = "127.0.0.1:0"


@dataclass(frozen=True, slots=True)
class ChartSupervisor:
    """One of the Deployment's pods, run here with its variables and its account's rights."""

    pod: str
    directory: Path
    log: Path

    @property
    def grpc(self) -> str:
        return str(json.loads((self.directory / "endpoints.json").read_bytes())["grpc"])

    def said(self, event: str) -> list[dict[str, Any]]:
        lines = (json.loads(line) for line in self.log.read_text("utf-8").splitlines() if line.startswith("{"))
        return [line for line in lines if line["event"] == event]


async def pods(present: Installation, component: str) -> list[Any]:
    label = f"app.kubernetes.io/component={component}"
    return list((await present.api.get(f"{HERE}/pods", labelSelector=label))["items"])


@asynccontextmanager
async def supervisor(present: Installation, directory: Path) -> AsyncIterator[ChartSupervisor]:
    [pod, *_] = await pods(present, "supervisor")
    kubeconfig = directory / "kubeconfig"
    cluster = present.plane.cluster
    write_kubeconfig(kubeconfig, cluster.url, cluster.ca, await _token(present, RELEASE, {}), NAMESPACE)
    (directory / "data").mkdir(mode=0o700)
    running = ChartSupervisor(pod["metadata"]["name"], directory / "data", directory / "supervisor.log")
    variables = {
        **environment(await present.api.get(f"{_APPS}/deployments/{RELEASE}")),
        **{f"JOB_SUPERVISOR_{port}_ADDRESS": _ANY_PORT for port in ("GRPC", "HTTP", "PROBE", "WEBHOOK")},
        "JOB_SUPERVISOR_DATA_DIR": str(running.directory),
        "JOB_SUPERVISOR_NAMESPACE": NAMESPACE,
        "JOB_SUPERVISOR_POD_NAME": running.pod,
        "KUBECONFIG": str(kubeconfig),
    }
    with running.log.open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "supervisor", "serve", env={**os.environ, **variables}, stderr=log
        )
    try:

        async def serves() -> bool:
            assert process.returncode is None, running.log.read_text("utf-8")
            return (running.directory / "endpoints.json").exists()

        await until(serves, "it serves", seconds=_PATIENCE_SECONDS)
        yield running
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@asynccontextmanager
async def node_agent(present: Installation, of: ChartSupervisor, directory: Path) -> AsyncIterator[AgentProcess]:
    """One of the agents, with its pod's token and what its ConfigMap says."""
    [pod, *_] = await pods(present, "agent")
    bound = {"kind": "Pod", "apiVersion": "v1", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
    [projected, *_] = pod["spec"]["volumes"]
    audience = projected["projected"]["sources"][0]["serviceAccountToken"]["audience"]
    files = {
        "token": await _token(present, AGENT, {"audiences": [audience], "boundObjectRef": bound}),
        "ca.crt": (await present.api.get(f"{HERE}/configmaps/{RELEASE}-ca"))["data"]["ca.crt"],
    }
    for name, text in files.items():
        (directory / name).write_text(text, "utf-8")
    variables = {
        **environment(await present.api.get(f"{_APPS}/daemonsets/{AGENT}")),
        "NODE_AGENT_NODE_NAME": pod["spec"]["nodeName"],
        # The name of a Service, which nothing resolves here.
        "NODE_AGENT_SUPERVISOR": of.grpc,
        "NODE_AGENT_TOKEN_FILE": str(directory / "token"),
        "NODE_AGENT_CA_FILE": str(directory / "ca.crt"),
        "NODE_AGENT_PROBE_ADDRESS": _ANY_PORT,
    }
    async with agent(variables) as running:
        yield running


async def whom_the_webhook_trusts(present: Installation) -> str:
    """The CA in the configuration, as PEM; nothing as long as nobody has said it."""
    configuration = await present.api.get(_CONFIGURATION)
    [trusted] = {each["clientConfig"].get("caBundle", "") for each in configuration["webhooks"]}
    return base64.b64decode(trusted).decode()


async def reach(present: Installation, address: str) -> None:
    """Have the API server ask there: no Service leads anywhere here. Everything else of the configuration stays."""
    webhooks = (await present.api.get(_CONFIGURATION))["webhooks"]
    for webhook in webhooks:
        called = webhook["clientConfig"]
        path, bundle = called["service"]["path"], called["caBundle"]
        webhook["clientConfig"] = {"url": f"https://{address}{path}", "caBundle": bundle}
    await present.api.patch(_CONFIGURATION, {"webhooks": webhooks})


async def _token(present: Installation, account: str, spec: Mapping[str, Any]) -> str:
    answer = await present.api.create(
        f"{HERE}/serviceaccounts/{account}/token", {"spec": {"expirationSeconds": 3600, **spec}}
    )
    return str(answer["status"]["token"])


_CONFIGURATION = f"/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/{RELEASE}"
