"""Credentials of one control plane: a CA, a server certificate, and a token for each user."""

import json
import secrets
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import trustme


class User(Enum):
    ADMIN = ("admin", "admin", "system:masters")
    # Outside system:masters it gets 403s, the not-ready taint stays on every node, and pods stay pending; service
    # accounts of its own cost five seconds at the start.
    CONTROLLER_MANAGER = ("controller-manager", "system:kube-controller-manager", "system:masters")
    SCHEDULER = ("scheduler", "system:kube-scheduler", "")
    KWOK = ("kwok", "kwok", "system:masters")
    # Of a real node, which is called `node`.
    KUBELET = ("kubelet", "system:node:node", "system:nodes")
    PROXY = ("proxy", "system:kube-proxy", "")


@dataclass(frozen=True, slots=True)
class Credentials:
    """The files, all in one directory that only their owner reads."""

    directory: Path

    @property
    def ca(self) -> Path:
        return self.directory / "ca.crt"

    @property
    def certificate(self) -> Path:
        return self.directory / "server.crt"

    @property
    def key(self) -> Path:
        return self.directory / "server.key"

    @property
    def service_accounts(self) -> Path:
        return self.directory / "service-accounts.key"

    @property
    def tokens(self) -> Path:
        return self.directory / "tokens.csv"

    def kubeconfig(self, user: User) -> Path:
        return self.directory / f"{user.value[0]}.kubeconfig"


def make(credentials: Credentials, url: str, *names: str) -> None:
    """Write all of them, for servers that have those names and IP addresses, and an API server at that URL."""
    credentials.directory.mkdir(mode=0o700, parents=True)
    ca = trustme.CA()
    ca.cert_pem.write_to_path(credentials.ca)
    server = ca.issue_cert(*names)
    server.cert_chain_pems[0].write_to_path(credentials.certificate)
    server.private_key_pem.write_to_path(credentials.key)
    ca.issue_cert("service-accounts").private_key_pem.write_to_path(credentials.service_accounts)
    tokens = {user: secrets.token_hex(16) for user in User}
    lines = (f'{token},{user.value[1]},{user.value[1]},"{user.value[2]}"\n' for user, token in tokens.items())
    credentials.tokens.write_text("".join(lines), encoding="utf-8")
    for user, token in tokens.items():
        write_kubeconfig(credentials.kubeconfig(user), url, credentials.ca, token)


def write_kubeconfig(path: Path, url: str, ca: Path, token: str, namespace: str = "default") -> None:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "clusters": [{"name": "here", "cluster": {"server": url, "certificate-authority": str(ca)}}],
        "users": [{"name": "me", "user": {"token": token}}],
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me", "namespace": namespace}}],
    }
    path.touch(mode=0o600)
    path.write_text(json.dumps(config), encoding="utf-8")


def rewrite_server(original: Path, copy: Path, url: str) -> None:
    """Write a copy of a kubeconfig with another URL of the API server."""
    config = json.loads(original.read_bytes())
    config["clusters"][0]["cluster"] = {"server": url}
    copy.touch(mode=0o600)
    copy.write_text(json.dumps(config), encoding="utf-8")
