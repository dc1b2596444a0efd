"""One test's share of the cluster: a namespace, nodes for its pods only, and accounts with only their roles."""

import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any

from tests.testkit.controlplane.api import Api, Manifest, ObjectRefused
from tests.testkit.controlplane.commands import KWOK_LABEL
from tests.testkit.controlplane.credentials import write_kubeconfig
from tests.testkit.controlplane.kwok import EXEC_VERSION
from tests.testkit.controlplane.running import RunningCluster
from tests.testkit.waiting import until

GPU = "nvidia.com/gpu"
_RBAC = "/apis/rbac.authorization.k8s.io/v1"
_RBAC_GROUP = "rbac.authorization.k8s.io"
OWNER_LABEL = "controlplane.test/namespace"


class Namespace:
    """A namespace of one test, and the cluster-scoped objects that the test has made."""

    def __init__(self, cluster: RunningCluster, api: Api, name: str = "") -> None:
        self.name = name or f"test-{secrets.token_hex(4)}"
        self.path = f"/api/v1/namespaces/{self.name}"
        self._cluster = cluster
        self._api = api
        self._outside: list[str] = []

    async def node(self, name: str = "node", gpus: int = 8, labels: Mapping[str, str] | None = None) -> str:
        """A node that kwok keeps Ready; returns its full name, which no other test's node has."""
        full = f"{name}.{self.name}"
        capacity = {"cpu": "96", "memory": "1Ti", "ephemeral-storage": "1Ti", "pods": "250", GPU: str(gpus)}
        await self._outside_of_it(
            "/api/v1/nodes",
            {
                "metadata": {
                    "name": full,
                    "labels": {
                        **KWOK_LABEL,
                        "kubernetes.io/hostname": full,
                        OWNER_LABEL: self.name,
                        **(labels or {}),
                    },
                },
                # Given here: a later change of the node leaves its status alone.
                "status": {"capacity": capacity, "allocatable": capacity},
            },
        )
        return full

    async def pod(self, name: str, gpus: int = 0, **metadata: Any) -> Any:
        """A pod for one of the test's own nodes; `metadata` such as labels or annotations."""
        limits = {GPU: str(gpus)} if gpus else {}
        return await self._api.create(
            f"{self.path}/pods",
            {
                "metadata": {"name": name, **metadata},
                "spec": {
                    "nodeSelector": {OWNER_LABEL: self.name},
                    # kwok runs no container, so there need be no image.
                    "containers": [{"name": "main", "image": "none", "resources": {"limits": limits}}],
                },
            },
        )

    async def get_pod(self, name: str) -> Any:
        return await self._api.get(f"{self.path}/pods/{name}")

    async def running(self, name: str) -> Any:
        return await until(lambda: self._ready(name), f"pod {name} is Running and Ready")

    async def runs_commands(self, pod: str, **variables: str) -> None:
        """Have commands in that pod's containers run here, with these variables; kwok knows it a moment later."""
        envs = [{"name": name, "value": value} for name, value in variables.items()]
        await self._api.create(
            f"/apis/{EXEC_VERSION}/namespaces/{self.name}/execs",
            {
                "apiVersion": EXEC_VERSION,
                "kind": "Exec",
                "metadata": {"name": pod},
                "spec": {"execs": [{"local": {"envs": envs}}]},
            },
        )

    async def gone(self, name: str) -> None:
        async def missing() -> bool:
            pods = await self._api.get(f"{self.path}/pods", fieldSelector=f"metadata.name={name}")
            return not pods["items"]

        await until(missing, f"pod {name} is gone")

    async def account(self, name: str, rules: Sequence[Manifest] = (), cluster_rules: Sequence[Manifest] = ()) -> None:
        """A service account that may do that, here and cluster-wide; returns when the rules act."""
        await self._api.create(f"{self.path}/serviceaccounts", {"metadata": {"name": name}})
        if rules:
            await self.role(name, self.name, rules)
        if cluster_rules:
            full = f"{name}.{self.name}"
            await self._outside_of_it(f"{_RBAC}/clusterroles", {"metadata": {"name": full}, "rules": cluster_rules})
            await self._outside_of_it(
                f"{_RBAC}/clusterrolebindings", self._binding("ClusterRole", full, name, self.name)
            )
        for rule in cluster_rules:
            await until(partial(self._may, name, self.name, rule, ""), f"{name} may {rule}")

    async def role(self, account: str, of: str, rules: Sequence[Manifest]) -> None:
        """Lets an account of the namespace `of` do that here; returns when the rules act."""
        name = f"{account}.{of}"
        await self._api.create(self._roles("roles"), {"metadata": {"name": name}, "rules": rules})
        await self._api.create(self._roles("rolebindings"), self._binding("Role", name, account, of))
        for rule in rules:
            await until(partial(self._may, account, of, rule, self.name), f"{account} may {rule}")

    async def token(self, account: str, audience: str | None = None) -> str:
        """A token of that account for an hour, for the API server or for that audience alone."""
        spec = {"expirationSeconds": 3600, **({"audiences": [audience]} if audience else {})}
        answer = await self._api.create(f"{self.path}/serviceaccounts/{account}/token", {"spec": spec})
        return str(answer["status"]["token"])

    async def kubeconfig(self, account: str, path: Path) -> Path:
        """A kubeconfig at that path, with which a program is that account."""
        write_kubeconfig(path, self._cluster.url, self._cluster.ca, await self.token(account), self.name)
        return path

    async def _ready(self, name: str) -> Any:
        pod = await self.get_pod(name)
        conditions = {(each["type"], each["status"]) for each in pod["status"].get("conditions", [])}
        return pod if pod["status"]["phase"] == "Running" and ("Ready", "True") in conditions else None

    def _roles(self, kind: str) -> str:
        return f"{_RBAC}/namespaces/{self.name}/{kind}"

    def _binding(self, kind: str, role: str, account: str, of: str) -> Manifest:
        return {
            "metadata": {"name": role},
            "roleRef": {"apiGroup": _RBAC_GROUP, "kind": kind, "name": role},
            "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": of}],
        }

    async def _may(self, account: str, of: str, rule: Manifest, namespace: str) -> bool:
        user = f"system:serviceaccount:{of}:{account}"
        asked = _path(rule) if "nonResourceURLs" in rule else {"resourceAttributes": _resource(rule, namespace)}
        answer = await self._api.create(
            "/apis/authorization.k8s.io/v1/subjectaccessreviews", {"spec": {"user": user, **asked}}
        )
        return bool(answer["status"]["allowed"])

    async def _outside_of_it(self, path: str, manifest: Manifest) -> None:
        self._outside.append(f"{path}/{manifest['metadata']['name']}")
        await self._api.create(path, manifest)

    async def _open(self) -> None:
        await self._api.create("/api/v1/namespaces", {"metadata": {"name": self.name}})
        await self._opens()

    async def _opens(self) -> None:
        # Without it no pod can be made.
        await until(lambda: self._api.get(f"{self.path}/serviceaccounts/default"), "its default account")

    async def _close(self) -> None:
        """Ask for the end of everything; a namespace takes ten seconds to go, and nobody waits for it."""
        await self._delete(self.path)
        await self._close_outside()

    async def _close_outside(self) -> None:
        for path in self._outside:
            await self._delete(path)

    async def _delete(self, path: str) -> None:
        try:
            await self._api.delete(path)
        except ObjectRefused as refused:
            # A test may well take away its own nodes.
            if refused.status != HTTPStatus.NOT_FOUND:
                raise


def _path(rule: Manifest) -> Manifest:
    return {"nonResourceAttributes": {"path": rule["nonResourceURLs"][0], "verb": rule["verbs"][0]}}


def _resource(rule: Manifest, namespace: str) -> Manifest:
    name, _, part = str(rule["resources"][0]).partition("/")
    return {
        "namespace": namespace,
        "verb": rule["verbs"][0],
        "group": rule["apiGroups"][0],
        "resource": name,
        "subresource": part,
        # A rule for named resources allows nothing else.
        "name": next(iter(rule.get("resourceNames", ())), ""),
    }


@asynccontextmanager
async def fresh_namespace(cluster: RunningCluster, api: Api) -> AsyncIterator[Namespace]:
    namespace = Namespace(cluster, api)
    await namespace._open()
    try:
        yield namespace
    finally:
        await namespace._close()


@asynccontextmanager
async def propagated_namespace(cluster: RunningCluster, api: Api, name: str) -> AsyncIterator[Namespace]:
    """The share of a cluster in which somebody else makes the namespace: a hub, in each of its members."""
    namespace = Namespace(cluster, api, name)
    await namespace._opens()
    try:
        yield namespace
    finally:
        await namespace._close_outside()
