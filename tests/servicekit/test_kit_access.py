"""Speaking with an API server as the pod that one is."""

import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trustme
from aiohttp import web

from servicekit.kubernetes.access import in_pod, pod_access
from servicekit.kubernetes.errors import ApiUnavailableError, ConfigurationError
from servicekit.kubernetes.server import ApiServer, Call

VERSION = Call(method="GET", path="/version")


def mounted(directory: Path, ca: trustme.CA) -> Path:
    (directory / "token").write_text("first\n")
    (directory / "namespace").write_text("training\n")
    ca.cert_pem.write_to_path(directory / "ca.crt")
    return directory


@asynccontextmanager
async def api_server(ca: trustme.CA) -> AsyncIterator[tuple[dict[str, str], list[str]]]:
    """One on loopback: the environment of its pods, and the Authorization headers that it was shown."""
    shown: list[str] = []

    async def handle(request: web.Request) -> web.Response:
        shown.append(request.headers.get("Authorization", ""))
        return web.json_response({})

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert("127.0.0.1").configure_cert(context)
    application = web.Application()
    application.router.add_get("/version", handle)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    try:
        port = str(runner.addresses[0][1])
        yield {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": port}, shown
    finally:
        await runner.cleanup()


async def test_a_pod_speaks_with_the_token_that_is_there_now(tmp_path: Path) -> None:
    """The kubelet renews it; while it cannot be read the API server counts as away."""
    ca = trustme.CA()
    directory = mounted(tmp_path, ca)
    async with api_server(ca) as (environ, shown):
        assert in_pod(environ)
        server = ApiServer(pod_access(environ, directory, token_seconds=0.0), 5.0)
        try:
            await server.request(VERSION)
            (directory / "token").write_text("second")
            await server.request(VERSION)
            for useless in ("", "\u00fc"):
                (directory / "token").write_text(useless)
                with pytest.raises(ApiUnavailableError, match="token"):
                    await server.request(VERSION)
        finally:
            await server.close()
    assert shown == ["Bearer first", "Bearer second"]
    assert server.namespace == "training"


async def test_a_token_is_not_read_for_every_request(tmp_path: Path) -> None:
    ca = trustme.CA()
    directory = mounted(tmp_path, ca)
    async with api_server(ca) as (environ, shown):
        server = ApiServer(pod_access(environ, directory), 5.0)
        try:
            await server.request(VERSION)
            (directory / "token").unlink()
            await server.request(VERSION)
        finally:
            await server.close()
    assert shown == ["Bearer first", "Bearer first"]


async def test_another_authority_is_not_believed(tmp_path: Path) -> None:
    directory = mounted(tmp_path, trustme.CA())
    async with api_server(trustme.CA()) as (environ, shown):
        server = ApiServer(pod_access(environ, directory), 5.0)
        try:
            with pytest.raises(ApiUnavailableError, match=r"[Cc]ertificate"):
                await server.request(VERSION)
        finally:
            await server.close()
    assert shown == []


def test_an_address_may_be_of_either_kind(tmp_path: Path) -> None:
    """A URL has brackets around one of IPv6."""
    directory = mounted(tmp_path, trustme.CA())
    for host, url in (("10.0.0.1", "https://10.0.0.1:443"), ("fd00::1", "https://[fd00::1]:443")):
        environ = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": "443"}
        assert pod_access(environ, directory).url == url


@pytest.mark.parametrize("missing", ["namespace", "ca.crt", "KUBERNETES_SERVICE_PORT"])
def test_what_a_pod_lacks_is_said_in_a_sentence(tmp_path: Path, missing: str) -> None:
    directory = mounted(tmp_path, trustme.CA())
    (directory / missing).unlink(missing_ok=True)
    environ = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    environ.pop(missing, None)
    with pytest.raises(ConfigurationError, match="no cluster to connect to"):
        pod_access(environ, directory)


def test_a_pod_does_not_load_the_client_library() -> None:
    """It costs 36 MiB."""
    code = "import sys, servicekit.kubernetes.reflector; sys.exit('kubernetes_asyncio' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
