"""A hub of many clusters: the programs of Karmada on a control plane of their own, and the clusters that join it."""

import base64
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.testkit.controlplane.api import Api, Manifest, ObjectRefused, client
from tests.testkit.controlplane.binaries import BinaryProgram, HubBinaries, HubProgram
from tests.testkit.controlplane.commands import PORTS
from tests.testkit.controlplane.credentials import Credentials, User
from tests.testkit.controlplane.running import ControlPlane, RunningCluster
from tests.testkit.waiting import until
from tests.testkit.yaml_text import document, documents

SYSTEM = "karmada-system"
_CLUSTER_SECRETS = "karmada-cluster"
_GROUP = "cluster.karmada.io"
CLUSTERS = f"/apis/{_GROUP}/v1alpha1/clusters"
WORK = "/apis/work.karmada.io"
_DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_WEBHOOKS = "/apis/admissionregistration.k8s.io/v1"
_SERVICE = "karmada-aggregated-apiserver"
# Behind those of the control plane, whose loopback address they share.
_AGGREGATED, _WEBHOOK, *_HEALTH = range(max(PORTS) + 1, max(PORTS) + 9)
# Those of a control plane that a hub has use of: it runs no pods.
_BELOW = (BinaryProgram.ETCD, BinaryProgram.API_SERVER, BinaryProgram.CONTROLLER_MANAGER)
_WITH_PARENT = ("setpriv", "--pdeathsig", "KILL")


class Hub:
    """The programs of a hub. They end with the thread that starts them, as those of a control plane do.

    A program may be killed and launched again.
    """

    def __init__(self, programs: Mapping[BinaryProgram, Path], binaries: HubBinaries, directory: Path) -> None:
        credentials = Credentials(directory / "credentials")
        self.plane = ControlPlane(
            programs,
            directory,
            {
                BinaryProgram.API_SERVER: {
                    "requestheader-client-ca-file": credentials.ca,
                    "requestheader-extra-headers-prefix": "X-Remote-Extra-",
                    "requestheader-group-headers": "X-Remote-Group",
                    "requestheader-username-headers": "X-Remote-User",
                    "proxy-client-cert-file": credentials.certificate,
                    "proxy-client-key-file": credentials.key,
                },
                # All others would act on the objects of jobs as if the hub ran them.
                BinaryProgram.CONTROLLER_MANAGER: {
                    "controllers": "namespace-controller,garbage-collector-controller,serviceaccount-controller",
                },
            },
        )
        self.cluster = self.plane.cluster
        self._binaries = binaries
        self._credentials = credentials
        self._address = str(urlsplit(self.cluster.url).hostname)
        self._processes: dict[HubProgram, subprocess.Popen[bytes]] = {}

    def launch(self, program: HubProgram) -> None:
        """Starts a program, also again after `kill`; does not wait for it."""
        flags = [f"--{name}={value}" for name, value in self._flags(program).items()]
        # One of Kubernetes has the name of Karmada's, too.
        with (self.cluster.directory / f"karmada-{program}.log").open("ab") as log:
            self._processes[program] = subprocess.Popen(
                [*_WITH_PARENT, str(self._binaries.programs[program]), *flags],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.cluster.directory,
                start_new_session=True,
            )

    def kill(self, program: HubProgram) -> None:
        process = self._processes.pop(program)
        process.kill()
        process.wait()

    async def start(self, *definitions: Manifest) -> None:
        """Starts everything; returns once a cluster can join and policies can be made.

        `definitions` are CRDs of what it propagates: later ones its controllers find within half a minute only.
        """
        for below in _BELOW:
            self.plane.launch(below)
            self.plane.wait_ready(below)
        async with client(self.cluster) as api:
            await self._prepare(api)
            for definition in definitions:
                await api.create(_DEFINITIONS, definition)
            # The controllers end where the API of clusters is missing.
            self.launch(HubProgram.API_SERVER)
            await until(lambda: _lists(api, CLUSTERS), "the hub serves its API of clusters", every=0.1)
            for program in (HubProgram.WEBHOOK, HubProgram.CONTROLLER_MANAGER, HubProgram.SCHEDULER):
                self.launch(program)
            await self._register_webhooks(api)

    def stop(self) -> None:
        for program in list(self._processes):
            self.kill(program)
        self.plane.stop()

    async def join(self, api: Api, name: str, member: RunningCluster) -> None:
        """Joins a cluster in Push mode, as its administrator; returns once the hub takes it for ready.

        The hub passes requests of its users on to the member, in their names (`clusters/NAME/proxy`).
        """
        secret = {
            "metadata": {"name": name},
            "stringData": {"token": member.token, "caBundle": member.ca.read_text(encoding="utf-8")},
        }
        await api.create(f"/api/v1/namespaces/{_CLUSTER_SECRETS}/secrets", secret)
        reference = {"namespace": _CLUSTER_SECRETS, "name": name}
        spec = {
            "syncMode": "Push",
            "id": name,
            "apiEndpoint": member.url,
            "secretRef": reference,
            "impersonatorSecretRef": reference,
        }
        await api.create(
            CLUSTERS,
            {"apiVersion": f"{_GROUP}/v1alpha1", "kind": "Cluster", "metadata": {"name": name}, "spec": spec},
        )

        async def ready() -> bool:
            status = (await api.get(f"{CLUSTERS}/{name}")).get("status", {})
            return ("Ready", "True") in {(each["type"], each["status"]) for each in status.get("conditions", ())}

        await until(ready, f"the hub takes {name} for ready", every=0.1)

    def _flags(self, program: HubProgram) -> Mapping[str, object]:
        kubeconfig = self._credentials.kubeconfig(User.ADMIN)
        number = list(HubProgram).index(program)
        health, metrics = (f"{self._address}:{port}" for port in _HEALTH[number * 2 - 2 : number * 2] or (0, 0))
        observed = {"metrics-bind-address": metrics, "health-probe-bind-address": health}
        serving = {"bind-address": self._address, "cert-dir": self._credentials.directory}
        return {
            HubProgram.API_SERVER: {
                "kubeconfig": kubeconfig,
                "authentication-kubeconfig": kubeconfig,
                "authorization-kubeconfig": kubeconfig,
                "etcd-servers": self.plane.etcd_url,
                "secure-port": _AGGREGATED,
                "bind-address": self._address,
                "tls-cert-file": self._credentials.certificate,
                "tls-private-key-file": self._credentials.key,
            },
            HubProgram.WEBHOOK: {
                "kubeconfig": kubeconfig,
                "secure-port": _WEBHOOK,
                "tls-cert-file-name": self._credentials.certificate.name,
                "tls-private-key-file-name": self._credentials.key.name,
                **serving,
                **observed,
            },
            HubProgram.CONTROLLER_MANAGER: {
                "kubeconfig": kubeconfig,
                "leader-elect": "false",
                # A member that has answered once is ready; by default it has to for half a minute.
                "cluster-success-threshold": "1s",
                # Keeps a value of the status as a label of the object that is made elsewhere.
                "feature-gates": "StatefulFailoverInjection=true",
                **observed,
            },
            HubProgram.SCHEDULER: {"kubeconfig": kubeconfig, "leader-elect": "false", **observed},
        }[program]

    async def _prepare(self, api: Api) -> None:
        for name in (SYSTEM, _CLUSTER_SECRETS):
            await api.create("/api/v1/namespaces", {"metadata": {"name": name}})
        for file in sorted((self._binaries.module / "charts" / "karmada" / "_crds" / "bases").glob("*/*.yaml")):
            await api.create(_DEFINITIONS, document(file.read_text(encoding="utf-8")))
        await until(lambda: _lists(api, f"{WORK}/v1alpha2/resourcebindings"), "the hub's CRDs are served", every=0.1)
        # The one name that stands for an address: no DNS server knows this host.
        service = {
            "metadata": {"name": _SERVICE},
            "spec": {"type": "ExternalName", "externalName": self._address},
        }
        await api.create(f"/api/v1/namespaces/{SYSTEM}/services", service)
        announced = {
            "metadata": {"name": f"v1alpha1.{_GROUP}"},
            "spec": {
                "group": _GROUP,
                "version": "v1alpha1",
                "groupPriorityMinimum": 2000,
                "versionPriority": 10,
                "insecureSkipTLSVerify": True,
                "service": {"name": _SERVICE, "namespace": SYSTEM, "port": _AGGREGATED},
            },
        }
        await api.create("/apis/apiregistration.k8s.io/v1/apiservices", announced)

    async def _register_webhooks(self, api: Api) -> None:
        manifests = (self._binaries.module / "artifacts" / "deploy" / "webhook-configuration.yaml").read_text("utf-8")
        bundle = base64.b64encode(self.cluster.ca.read_bytes()).decode("ascii")
        served = f"{self._address}:{_WEBHOOK}"
        filled = manifests.replace("{{caBundle}}", bundle).replace("karmada-webhook.karmada-system.svc:443", served)
        for configuration in documents(filled):
            await api.create(f"{_WEBHOOKS}/{configuration['kind'].lower()}s", configuration)


@asynccontextmanager
async def hub_api(hub: Hub) -> AsyncIterator[Api]:
    async with client(hub.cluster) as api:
        yield api


async def _lists(api: Api, path: str) -> Any:
    with suppress(ObjectRefused):  # 404 and then 503 or 429 for as long as it is being prepared.
        return await api.get(path)
    return None
