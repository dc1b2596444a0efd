"""Speaking with an API server as the pod that one is: as the agent does it, and as the supervisor does it."""

import subprocess
import sys
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path

import pytest
import trustme

from servicekit.kubernetes.access import Access, in_pod, pod_access
from servicekit.kubernetes.configured import configured_pod_access
from servicekit.kubernetes.errors import ApiUnavailableError, ConfigurationError
from servicekit.kubernetes.server import ApiServer
from tests.servicekit.kit_api_server import VERSION, api_server

AccessOf = Callable[[Mapping[str, str], Path], Access]


@pytest.fixture(params=["own", "kubernetes-asyncio"])
def access_of(request: pytest.FixtureRequest) -> AccessOf:
    return pod_access if request.param == "own" else configured_pod_access


@pytest.fixture(params=["own", "kubernetes-asyncio"])
def access_that_reads_each_time(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AccessOf:
    if request.param == "own":
        return lambda environ, directory: pod_access(environ, directory, token_seconds=0.0)
    monkeypatch.setattr("kubernetes_asyncio.config.incluster_config.TOKEN_REFRESH_PERIOD", timedelta(0))
    return configured_pod_access


def mounted(directory: Path, ca: trustme.CA) -> Path:
    (directory / "token").write_text("first\n")
    (directory / "namespace").write_text("training\n")
    ca.cert_pem.write_to_path(directory / "ca.crt")
    return directory


async def test_a_pod_speaks_with_the_token_that_is_there_now(
    tmp_path: Path, access_that_reads_each_time: AccessOf
) -> None:
    """The kubelet renews it; while it cannot be read the API server counts as away."""
    ca = trustme.CA()
    directory = mounted(tmp_path, ca)
    async with api_server(ca) as serving:
        assert in_pod(serving.environ)
        server = ApiServer(access_that_reads_each_time(serving.environ, directory), 5.0)
        try:
            await server.request(VERSION)
            (directory / "token").write_text("second")
            await server.request(VERSION)
            for useless in ("", " \n", "\u00fc", "two\nlines"):
                (directory / "token").write_text(useless)
                with pytest.raises(ApiUnavailableError, match="token"):
                    await server.request(VERSION)
            (directory / "token").unlink()
            with pytest.raises(ApiUnavailableError, match="token"):
                await server.request(VERSION)
            (directory / "token").write_text("third")
            await server.request(VERSION)
        finally:
            await server.close()
    assert serving.shown == ["Bearer first", "Bearer second", "Bearer third"]
    assert server.namespace == "training"


@pytest.mark.parametrize("useless", [None, ""])
async def test_a_pod_that_has_no_token_yet_goes_on_when_it_has(
    tmp_path: Path, access_of: AccessOf, useless: str | None
) -> None:
    ca = trustme.CA()
    directory = mounted(tmp_path, ca)
    (directory / "token").unlink()
    if useless is not None:
        (directory / "token").write_text(useless)
    async with api_server(ca) as serving:
        server = ApiServer(access_of(serving.environ, directory), 5.0)
        try:
            with pytest.raises(ApiUnavailableError, match="token"):
                await server.request(VERSION)
            (directory / "token").write_text("first")
            await server.request(VERSION)
        finally:
            await server.close()
    assert serving.shown == ["Bearer first"]


async def test_a_token_is_not_read_for_every_request(tmp_path: Path, access_of: AccessOf) -> None:
    ca = trustme.CA()
    directory = mounted(tmp_path, ca)
    async with api_server(ca) as serving:
        server = ApiServer(access_of(serving.environ, directory), 5.0)
        try:
            await server.request(VERSION)
            (directory / "token").unlink()
            await server.request(VERSION)
        finally:
            await server.close()
    assert serving.shown == ["Bearer first", "Bearer first"]


async def test_another_authority_is_not_believed(tmp_path: Path, access_of: AccessOf) -> None:
    directory = mounted(tmp_path, trustme.CA())
    async with api_server(trustme.CA()) as serving:
        server = ApiServer(access_of(serving.environ, directory), 5.0)
        try:
            with pytest.raises(ApiUnavailableError, match=r"[Cc]ertificate"):
                await server.request(VERSION)
        finally:
            await server.close()
    assert serving.shown == []


async def test_an_address_may_be_of_either_kind(tmp_path: Path, access_of: AccessOf) -> None:
    """A URL has brackets around one of IPv6."""
    directory = mounted(tmp_path, trustme.CA())
    for host, url in (("10.0.0.1", "https://10.0.0.1:443"), ("fd00::1", "https://[fd00::1]:443")):
        environ = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": "443"}
        assert access_of(environ, directory).url == url


@pytest.mark.parametrize("missing", ["namespace", "ca.crt", "KUBERNETES_SERVICE_PORT"])
async def test_what_a_pod_lacks_is_said_in_a_sentence(tmp_path: Path, access_of: AccessOf, missing: str) -> None:
    directory = mounted(tmp_path, trustme.CA())
    (directory / missing).unlink(missing_ok=True)
    environ = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    environ.pop(missing, None)
    with pytest.raises(ConfigurationError, match="no cluster to connect to"):
        access_of(environ, directory)


def test_a_client_that_does_not_connect_loads_no_library() -> None:
    """It costs 37 MiB."""
    code = "import sys, servicekit.kubernetes.reflector; sys.exit('kubernetes_asyncio' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
