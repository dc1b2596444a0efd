"""An API server that sends the pods of one namespace to the webhook, and supervisors that serve the webhook."""

import base64
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from simulator.certificates import SimulatedAuthority
from tests.controlplane.leader.leader_replicas import LeaderReplica, LeaderReplicas
from tests.supervisor.webhook.webhook_pods import Manifest, pod, volume
from tests.testkit.controlplane.api import Api
from tests.testkit.controlplane.installed import InstalledPlace
from tests.testkit.waiting import PATIENCE, until
from tests.testkit.yaml_text import document

"""For a supervisor to start, and for what it knows to be seen, on a machine with much else to do."""

PUBLIC = "https://elastic-job-supervisor.arena-system:8471"
_CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
_PAGE = Path(__file__).parents[3] / "docs" / "kubernetes" / "webhook.md"


def documented(kind: str) -> Manifest:
    """The object of that kind that the page about the webhook shows."""
    blocks = [block.partition("```")[0] for block in _PAGE.read_text(encoding="utf-8").split("```yaml\n")[1:]]
    (found,) = [one for one in map(document, blocks) if one["kind"] == kind]
    return dict(found)


@dataclass(slots=True)
class WebhookWorld:
    here: InstalledPlace
    replicas: LeaderReplicas
    authority: SimulatedAuthority
    namespace: str = field(default_factory=lambda: f"webhook-{secrets.token_hex(4)}")
    made: list[str] = field(default_factory=list)

    @property
    def api(self) -> Api:
        return self.here.api

    @property
    def pods(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods"

    @classmethod
    @asynccontextmanager
    async def open(cls, here: InstalledPlace, replicas: LeaderReplicas, directory: Path) -> AsyncIterator[Self]:
        """With a namespace and its default account, which every pod needs."""
        own = cls(here, replicas, SimulatedAuthority(directory / "tls"))
        await own.api.create("/api/v1/namespaces", {"metadata": {"name": own.namespace}})
        await own.api.create(f"/api/v1/namespaces/{own.namespace}/serviceaccounts", {"metadata": {"name": "default"}})
        try:
            yield own
        finally:
            for path in (*own.made, f"{own.pods}?gracePeriodSeconds=0"):
                await own.api.delete(path)

    async def supervisor(self, *, serving: bool = True, **changes: Any) -> LeaderReplica:
        """One more, which can be asked; returns when it serves or stands by."""
        settings = {
            "tls_cert_file": self.authority.cert_file,
            "tls_key_file": self.authority.key_file,
            "webhook_address": "127.0.0.1:0",
            "public_address": PUBLIC,
            "public_ca_file": self.authority.ca_file,
            **changes,
        }
        return await self.replicas.start(serving=serving, within=PATIENCE, **settings)

    async def ask(self, replica: LeaderReplica, name: str = "elastic-job-supervisor", ca: bytes | None = None) -> None:
        """Have that one asked about the pods of the namespace, by that CA; returns once it is."""
        await self.ask_at(await address(replica), name, ca)

        async def asked() -> bool:
            return volume(await self.make(pod(), dryRun="All")) is not None

        await until(asked, "pods are shaped")

    async def ask_at(self, where: str, name: str = "elastic-job-supervisor", ca: bytes | None = None) -> None:
        """Have whoever is at that address asked, as the page has it but for this namespace alone."""
        configuration = documented("MutatingWebhookConfiguration")
        bundle = base64.b64encode(self.authority.ca_pem if ca is None else ca).decode()
        for webhook in configuration["webhooks"]:
            path = webhook["clientConfig"]["service"]["path"]
            webhook["clientConfig"] = {"url": f"https://{where}{path}", "caBundle": bundle}
            webhook["namespaceSelector"] = {"matchLabels": {"kubernetes.io/metadata.name": self.namespace}}
        configuration["metadata"]["name"] = name
        await self.api.create(_CONFIGURATIONS, configuration)
        self.made.append(f"{_CONFIGURATIONS}/{name}")

    async def make(self, manifest: Manifest, **query: str) -> Manifest:
        """The pod that comes of it, under a new name; deleted at the end."""
        name = f"pod-{secrets.token_hex(4)}"
        made: Mapping[str, Any] = {**manifest, "metadata": {**manifest["metadata"], "name": name}}
        asked = "&".join(f"{key}={value}" for key, value in query.items())
        return dict(await self.api.create(f"{self.pods}?{asked}", made))

    async def node(self) -> str:
        name = f"node-{secrets.token_hex(4)}"
        await self.api.create("/api/v1/nodes", {"metadata": {"name": name}})
        self.made.append(f"/api/v1/nodes/{name}")
        return name


async def address(replica: LeaderReplica) -> str:
    async def said() -> str:
        return next((each["address"] for each in replica.said() if each["event"] == "webhook.listening"), "")

    return await until(said, "the webhook listens")
