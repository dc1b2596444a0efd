"""A TrainingJob in real pods under our operator: the real horovodrun starts its workers over ssh, by their names."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from simulator.events import JobEvent, JobEventKind, read
from tests.chart.chart_rendering import NAMESPACE, RELEASE
from tests.horovod.horovod_installation import installed, site_packages
from tests.images.images_building import CHECKOUT
from tests.node.node_ground import TRAINING
from tests.node.node_world import JOBS, NodeWorld
from tests.testkit.controlplane.api import Manifest
from tests.testkit.waiting import until

WORKERS, LEAST, MOST = 3, 2, 4
_GROUP = "kai.alibabacloud.com/v1alpha1"
_PATH = f"/apis/{_GROUP}/namespaces/{JOBS}"
_OPTED_IN = {"job-supervisor.kube-ai.io/managed-by-job-supervisor": "true"}
_RECORDS = "/records"
_SECONDS = 240.0
# The processes share the machine with the tests, which would read their records a hundred times a second.
_LOOK_SECONDS = 0.2
_DEPLOYMENT = f"{RELEASE}-trainingjobs"
# The definitions are those of the stand-in, as they would be et-operator's. A Lease that is new is waited for.
_ENABLED = "--set trainingJobOperator.installCRDs=false --set trainingJobOperator.settings.leaseSeconds=3"
_HOROVODRUN = (
    "export KUBEAI_RUN=$(date +%s); cd /tmp; exec python3 /checkout/tests/horovod/horovod_driver.py"
    # It starts a program on each worker to find the interfaces: 30 s are too short for a machine that is busy.
    f" -np ${{workers}} --start-timeout 300 --min-np {LEAST} --max-np {MOST}"
    " --host-discovery-script /etc/edl/discover_hosts.sh"
    " python3 /checkout/tests/horovod/horovod_worker.py --steps 1000000 --step-seconds 0.1 --commit-every 1"
    f" --checkpoint-every 50 --checkpoint {_RECORDS}/checkpoint"
)


@asynccontextmanager
async def operating(here: NodeWorld) -> AsyncIterator[None]:
    """Our operator, installed by the chart, in the place of the stand-in for et-operator."""
    await here.stand_in.stop()
    await _upgrade(here, enabled=True)
    await here.follow(f"kubectl -n {NAMESPACE} rollout status deployment/{_DEPLOYMENT}")
    try:
        yield
    finally:
        await _upgrade(here, enabled=False)
        here.stand_in.start()


async def _upgrade(here: NodeWorld, *, enabled: bool) -> None:
    value = f"--set trainingJobOperator.enabled={str(enabled).lower()} {_ENABLED}"
    await here.follow(f"helm upgrade {RELEASE} charts/{RELEASE} --namespace {NAMESPACE} --reuse-values {value}")


@dataclass(frozen=True, slots=True)
class HorovodJob:
    """One job, and the directory of the node where its processes write what they do."""

    here: NodeWorld
    name: str
    records: Path

    async def submit(self) -> None:
        await self.here.api.create(f"{_PATH}/trainingjobs", _manifest(self.name, self.records))

    async def events(self) -> Sequence[JobEvent]:
        return await asyncio.to_thread(read, self.records)

    async def trains(self, *workers: int, after: float = 0.0) -> JobEvent:
        """The first step after that instant of a ring of just these workers, once rank 0 has made it."""
        hosts = [f"{self.name}-worker-{worker}" for worker in workers]

        async def stepped() -> list[JobEvent]:
            found = first_step(await self.events(), hosts, after)
            return [] if found is None else [found]

        [first] = await until(stepped, f"{hosts} train", seconds=_SECONDS, every=_LOOK_SECONDS)
        return first

    async def status(self) -> Any:
        return (await self.here.api.get(f"{_PATH}/trainingjobs/{self.name}")).get("status", {})

    async def phase(self, phase: str) -> float:
        """When the operator said that the job has that phase, as seen here, in Unix seconds."""

        async def reached() -> bool:
            return bool((await self.status()).get("phase") == phase)

        await until(reached, f"{self.name} is {phase}", seconds=_SECONDS, every=_LOOK_SECONDS)
        return time.time()

    async def scale(self, kind: str, name: str, **spec: Any) -> float:
        """Asks for a ScaleIn or ScaleOut; returns when, in Unix seconds."""
        body = {"selector": {"name": self.name}, **spec}
        manifest = {"apiVersion": _GROUP, "kind": kind, "metadata": {"name": name}, "spec": body}
        at = time.time()
        await self.here.api.create(f"{_PATH}/{kind.lower()}s", manifest)
        return at

    async def scaled(self, kind: str, name: str) -> Any:
        """Its status, once it is over."""

        async def over() -> Any:
            status = (await self.here.api.get(f"{_PATH}/{kind.lower()}s/{name}")).get("status", {})
            return status if status.get("phase") in ("ScaleSucceeded", "ScaleFailed") else None

        return await until(over, f"{kind} {name} is over", seconds=_SECONDS, every=_LOOK_SECONDS)

    async def pods(self) -> set[str]:
        found = await self.here.pods(JOBS, f"training-job-name={self.name}")
        return {pod["metadata"]["name"] for pod in found}

    async def delete_pod(self, role: str) -> float:
        at = time.time()
        await self.here.api.delete(f"/api/v1/namespaces/{JOBS}/pods/{self.name}-{role}")
        return at

    async def excluded(self, worker: int) -> float:
        """When a worker was among the hosts that the launcher is shown to leave out, as seen here, in Unix seconds."""
        path = f"/api/v1/namespaces/{JOBS}/pods/{self.name}-launcher"

        async def is_excluded() -> bool:
            annotations = (await self.here.api.get(path))["metadata"]["annotations"]
            listed = annotations.get("job-supervisor.kube-ai.io/excluded-hosts", "")
            return f"{self.name}-worker-{worker}" in listed.split()

        await until(is_excluded, f"worker {worker} is excluded", seconds=_SECONDS)
        return time.time()


def first_step(events: Sequence[JobEvent], hosts: Sequence[str], after: float) -> JobEvent | None:
    """Rank 0's first step of a ring of just these hosts."""
    ring = None
    for event in events:
        if event.kind is JobEventKind.RING_FORMED:
            ring = event
        elif event.kind is JobEventKind.STEP_APPLIED and event.t > after and event.integer("rank") == 0:
            is_its = ring is not None and event.integer("epoch") == ring.integer("epoch")
            if ring is not None and is_its and sorted(ring.texts("hosts")) == sorted(hosts):
                return event
    return None


def steps(events: Sequence[JobEvent], until: float) -> list[int]:
    """The steps of rank 0 until that instant, in the order in which it made them."""
    made = (one for one in events if one.kind is JobEventKind.STEP_APPLIED and one.t <= until)
    return [one.integer("step") for one in made if one.integer("rank") == 0]


def last(events: Sequence[JobEvent], kind: JobEventKind) -> JobEvent:
    return next(event for event in reversed(events) if event.kind is kind)


def _manifest(name: str, records: Path) -> Manifest:
    # The image has a Python of the same version as the packages, which lie on the node. No variable says where, because
    # horovodrun looks for interfaces by programs that it starts without its environment.
    site = records / "site"
    site.mkdir()
    (site / "job.pth").write_text("/checkout\n/checkout/sdk\n/horovod\n/packages\n", encoding="ascii")
    mounted = {
        "/checkout": CHECKOUT,
        "/horovod": site_packages(installed()),
        "/packages": Path(np.__file__).parents[1],
        site_packages(Path("/root/.local")): site,
        _RECORDS: records,
    }
    names = {str(path): f"volume-{number}" for number, path in enumerate(mounted)}
    variables = {
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOROVOD_COLLECTIVES": "hosts",
        "SIM_EVENTS": _RECORDS,
        "SIM_STATE": f"{_RECORDS}/state",
        "workers": str(WORKERS),
    }
    container = {
        "name": "et",
        "image": TRAINING,
        "env": [{"name": key, "value": value} for key, value in variables.items()],
        "volumeMounts": [{"name": volume, "mountPath": path} for path, volume in names.items()],
    }
    volumes = [
        {"name": volume, "hostPath": {"path": str(path)}}
        for volume, path in zip(names.values(), mounted.values(), strict=True)
    ]

    def template(**more: Any) -> Manifest:
        spec = {"containers": [{**container, **more}], "terminationGracePeriodSeconds": 5, "volumes": volumes}
        return {"metadata": {"annotations": _OPTED_IN}, "spec": spec}

    worker = {"replicas": WORKERS, "minReplicas": LEAST, "maxReplicas": MOST, "restartPolicy": "Always"}
    return {
        "apiVersion": _GROUP,
        "kind": "TrainingJob",
        "metadata": {"name": name, "annotations": _OPTED_IN},
        "spec": {
            "restartPolicy": "OnFailure",
            "etReplicaSpecs": {
                "launcher": {"replicas": 1, "template": template(command=["bash", "-c", _HOROVODRUN])},
                # Without a command a worker runs sshd, with the keys that the operator has made.
                "worker": {**worker, "template": template()},
            },
        },
    }


def show(**seconds: float) -> None:
    sys.stdout.write("".join(f"{name.replace('_', ' ')}: {value:.2f} s\n" for name, value in seconds.items()))
