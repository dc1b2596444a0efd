"""The files of a pod's projected volume at /var/run/kubeai: its identity and the supervisor's address."""

from dataclasses import dataclass

import msgspec

from servicekit.kubernetes.server import ApiServer, Call
from simulator.cluster.objects import RunPod
from simulator.cluster.paths import PodPaths, write

_TOKEN_SECONDS = 3600


@dataclass(frozen=True, slots=True)
class PodIdentity:
    """The values that are equal for all pods: the supervisor's URL, its CA, and the audience of the tokens."""

    address: str
    audience: str
    ca: str | None = None


class _TokenStatus(msgspec.Struct, frozen=True):
    token: str


class _PodToken(msgspec.Struct, frozen=True):
    status: _TokenStatus


async def write_identity(server: ApiServer, pod: RunPod, home: PodPaths, identity: PodIdentity) -> None:
    """Write the files. The token is valid as long as this pod exists.

    Raises:
        ApiError: The token request failed.
    """
    write(home.kubeai / "token", await _token(server, pod, identity.audience))
    write(home.kubeai / "address", identity.address)
    if identity.ca is not None:
        write(home.kubeai / "ca.crt", identity.ca)


def show_annotations(pod: RunPod, home: PodPaths) -> None:
    """Write the pod's annotations as a downward-API volume does."""
    lines = (f"{name}={msgspec.json.encode(value).decode()}\n" for name, value in pod.metadata.annotations.items())
    write(home.kubeai / "annotations", "".join(sorted(lines)))


async def _token(server: ApiServer, pod: RunPod, audience: str) -> str:
    bound = {"apiVersion": "v1", "kind": "Pod", "name": pod.name, "uid": pod.metadata.uid}
    spec = {"audiences": [audience], "expirationSeconds": _TOKEN_SECONDS, "boundObjectRef": bound}
    account = pod.spec.service_account_name
    path = f"/api/v1/namespaces/{pod.metadata.namespace}/serviceaccounts/{account}/token"
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    answer = await server.request(Call(method="POST", path=path, body=msgspec.json.encode(body)))
    return msgspec.json.decode(answer, type=_PodToken).status.token
