"""The cluster's name server for the pods of the tests: it asks the API server for each name of a Service or its pod."""

import json
import re
import socketserver
import ssl
import struct
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ipaddress import IPv4Address
from typing import Any

from tests.testkit.controlplane.running import RunningCluster

DOMAIN = "cluster.local"
_SERVICE = re.compile(rf"(?:([a-z0-9-]+)\.)?([a-z0-9-]+)\.([a-z0-9-]+)\.svc\.{re.escape(DOMAIN)}")
_PORT = 53
_SECONDS = 2.0
_HEADER = struct.Struct("!6H")
_A, _IN = 1, 1
_ANSWER, _NO_NAME, _FAILURE = 0x8580, 0x8583, 0x8582
_TTL_SECONDS = 1


class _NameServer(socketserver.ThreadingUDPServer):
    """Answers with the address of a Service or, of a headless one, with those of its pods, also before they are ready.

    A pod with a hostname has a name in the Service that is its subdomain.

    What is known of a name is said while the API server is away, as the usual name server does.
    """

    daemon_threads = True

    def __init__(self, address: str, cluster: RunningCluster) -> None:
        super().__init__((address, _PORT), _Question)
        self._cluster = cluster
        self._trusted = ssl.create_default_context(cafile=str(cluster.ca))
        self._known: dict[str, Sequence[IPv4Address] | None] = {}

    def addresses(self, name: str) -> Sequence[IPv4Address] | None:
        """Returns the addresses of a name, None if there is no such name.

        Raises:
            OSError: The API server does not answer, and the name is not known.
        """
        found = _SERVICE.fullmatch(name)
        if found is None:
            return None
        try:
            hostname, service, namespace = found.groups()
            if hostname is None:
                self._known[name] = self._of_service(service, namespace)
            else:
                # None of that name is no such name.
                self._known[name] = self._of_pods(service, namespace, hostname) or None
        except urllib.error.HTTPError as refused:
            refused.close()
            self._known[name] = None
        except OSError:
            if name not in self._known:
                raise
        return self._known[name]

    def _of_service(self, service: str, namespace: str) -> Sequence[IPv4Address]:
        address = self._get(f"/api/v1/namespaces/{namespace}/services/{service}")["spec"].get("clusterIP")
        if address != "None":
            return [IPv4Address(address)]
        return self._of_pods(service, namespace)

    def _of_pods(self, service: str, namespace: str, hostname: str | None = None) -> Sequence[IPv4Address]:
        slices = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
        found = self._get(f"{slices}?labelSelector=kubernetes.io/service-name={service}")["items"]
        ends = [end for one in found for end in one.get("endpoints") or ()]
        wanted = [end for end in ends if hostname in (None, end.get("hostname"))]
        return [IPv4Address(text) for end in wanted for text in end["addresses"]]

    def _get(self, path: str) -> Any:
        headers = {"Authorization": f"Bearer {self._cluster.token}"}
        request = urllib.request.Request(f"{self._cluster.url}{path}", headers=headers)  # noqa: S310  # The scheme is ours.
        with urllib.request.urlopen(request, context=self._trusted, timeout=_SECONDS) as answer:  # noqa: S310  # As above.
            return json.loads(answer.read())


class _Question(socketserver.BaseRequestHandler):
    server: _NameServer

    def handle(self) -> None:
        query, socket = self.request
        number, _, _, _, _, _ = _HEADER.unpack_from(query)
        name, end = _name(query)
        [kind] = struct.unpack_from("!H", query, end)
        question = query[_HEADER.size : end + 4]
        try:
            found = self.server.addresses(name)
        except OSError:
            socket.sendto(_HEADER.pack(number, _FAILURE, 1, 0, 0, 0) + question, self.client_address)
            return
        # Other kinds of records, such as addresses of version 6, are none, but the name is one.
        records = [_record(address) for address in found or () if kind == _A]
        code = _NO_NAME if found is None else _ANSWER
        answer = _HEADER.pack(number, code, 1, len(records), 0, 0) + question + b"".join(records)
        socket.sendto(answer, self.client_address)


def _name(query: bytes) -> tuple[str, int]:
    """The name of the question, and where it ends."""
    labels, at = list[str](), _HEADER.size
    while length := query[at]:
        labels.append(query[at + 1 : at + 1 + length].decode("ascii", "replace").lower())
        at += 1 + length
    return ".".join(labels), at + 1


def _record(address: IPv4Address) -> bytes:
    # The name is that of the question, 12 bytes from the beginning.
    return struct.pack("!HHHIH", 0xC000 | _HEADER.size, _A, _IN, _TTL_SECONDS, 4) + address.packed


@contextmanager
def names(address: str, cluster: RunningCluster) -> Iterator[None]:
    """Runs the name server on that address."""
    with _NameServer(address, cluster) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()
