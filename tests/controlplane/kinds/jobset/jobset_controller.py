"""The real controller of JobSets, outside a pod, with its admission webhooks for them."""

import asyncio
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import yaml  # type: ignore[import-untyped]  # Its stubs would be one more package for one call.

from tests.controlplane.kinds.operators import OperatorWebhooks, built, certified, define, started
from tests.testkit.controlplane.api import client
from tests.testkit.controlplane.running import RunningCluster

NAME = "jobset"
IN_PLACE = "jobset-0.12"
"""The pins of a version that can restart pods in place, which one of its feature gates turns on."""

_COMPONENTS = Path("config", "components")
# Others than those of the operators that may run beside it.
_PORT, _HEALTH_PORT = 9444, 8082


@contextmanager
def in_place_controller(cluster: RunningCluster) -> Iterator[None]:
    """The controller that can restart pods in place."""
    with jobset_controller(cluster, IN_PLACE, "InPlaceRestart"):
        yield


def in_place_agent() -> Path:
    """The program that runs in each pod of a JobSet whose pods are restarted in place."""
    return built(IN_PLACE, "in-place-restart-agent").program


@contextmanager
def jobset_controller(cluster: RunningCluster, pins: str = NAME, *gates: str) -> Iterator[None]:
    """The controller, for the whole cluster; it takes JobSets once the block begins."""
    operator, host = built(pins, NAME), str(urlsplit(cluster.url).hostname)
    directory = cluster.directory / NAME
    directory.mkdir()
    command = [str(operator.program), f"--config={_configuration(directory, host, gates)}"]
    webhooks = OperatorWebhooks(NAME, host, _PORT, certified(directory, host).cert_pem)
    asyncio.run(_prepare(cluster, operator.module / _COMPONENTS, webhooks))
    with started(NAME, command, cluster, {**os.environ, "KUBECONFIG": str(cluster.kubeconfig)}):
        asyncio.run(webhooks.answer())
        yield


def _configuration(directory: Path, host: str, gates: Collection[str]) -> Path:
    configuration = {
        "apiVersion": "config.jobset.x-k8s.io/v1alpha1",
        "kind": "Configuration",
        "health": {"healthProbeBindAddress": f"{host}:{_HEALTH_PORT}"},
        "metrics": {"bindAddress": "0"},
        "webhook": {"host": host, "port": _PORT, "certDir": str(directory)},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        **({"featureGates": dict.fromkeys(gates, True)} if gates else {}),
    }
    path = directory / "configuration.yaml"
    path.write_text(yaml.safe_dump(configuration), encoding="utf-8")
    return path


async def _prepare(cluster: RunningCluster, components: Path, webhooks: OperatorWebhooks) -> None:
    async with client(cluster) as api:
        for path in sorted((components / "crd" / "bases").iterdir()):
            await define(api, path.read_text(encoding="utf-8"))
        manifests = (components / "webhook" / "manifests.yaml").read_text(encoding="utf-8")
        # Those for pods only check where an exclusive JobSet places its pods.
        await webhooks.register(api, manifests, {"jobsets"})
