"""Speaking with an API server as a kubeconfig says: real files, real programs for tokens, real TLS on loopback."""

import asyncio
import base64
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import trustme

from servicekit.kubernetes.configured import kubeconfig_access
from servicekit.kubernetes.errors import ApiUnavailableError, ConfigurationError
from servicekit.kubernetes.server import ApiServer
from tests.servicekit.kit_api_server import VERSION, TlsApiServer, api_server
from tests.testkit.waiting import PATIENCE, until

# Gives the tokens token-1, token-2 … for so many seconds each; instead, it does what the file `do` says.
_PLUGIN = """#!/bin/sh
cd "$(dirname "$0")"
echo run >> runs
if [ -e do ]; then . ./do; fi
expires=$(date -u -d "+$1 seconds" +%Y-%m-%dT%H:%M:%SZ)
cat <<END
{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential",
 "status": {"token": "token-$(wc -l < runs)", "expirationTimestamp": "$expires"}}
END
"""


def encoded(pem: trustme.Blob) -> str:
    return base64.b64encode(pem.bytes()).decode()


class Kubeconfig:
    """A file with one context, `here`, which a test changes."""

    def __init__(self, directory: Path, serving: TlsApiServer, ca: trustme.CA, **user: Any) -> None:
        self.file = directory / "kubeconfig"
        self.cluster = {"server": serving.url, "certificate-authority-data": encoded(ca.cert_pem)}
        self.content: dict[str, Any] = {
            "current-context": "here",
            "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "home"}}],
            "clusters": [{"name": "c", "cluster": self.cluster}],
            "users": [{"name": "u", "user": user}],
        }

    async def connect(self, context: str | None = None, plugin_seconds: float = PATIENCE) -> ApiServer:
        self.file.write_text(json.dumps(self.content))
        return ApiServer(await kubeconfig_access(str(self.file), context, plugin_seconds), 5.0)


class Plugin:
    """A program for tokens of that many seconds."""

    def __init__(self, directory: Path, seconds: int) -> None:
        self.directory = directory
        self.file = directory / "plugin"
        self.file.write_text(_PLUGIN)
        self.file.chmod(0o700)
        api = "client.authentication.k8s.io/v1"
        self.user = {"exec": {"apiVersion": api, "command": str(self.file), "args": [str(seconds)]}}

    @property
    def runs(self) -> int:
        return (self.directory / "runs").read_text().count("run")

    def do(self, line: str) -> None:
        (self.directory / "do").write_text(line)

    def recover(self) -> None:
        (self.directory / "do").unlink()


async def shown(server: ApiServer, serving: TlsApiServer) -> str:
    await server.request(VERSION)
    return serving.shown[-1]


async def test_a_programs_token_is_renewed_before_it_expires(tmp_path: Path) -> None:
    """It runs for the connection and for the renewal, and not for the other requests, also if they come at once."""
    ca, plugin = trustme.CA(), Plugin(tmp_path, 4)
    async with api_server(ca) as serving:
        server = await Kubeconfig(tmp_path, serving, ca, **plugin.user).connect()
        try:
            await asyncio.gather(*(server.request(VERSION) for _ in range(10)))
            assert set(serving.shown) == {"Bearer token-1"}
            assert plugin.runs == 1
            await asyncio.sleep(3.3)
            assert await shown(server, serving) == "Bearer token-2"
            assert plugin.runs == 2
        finally:
            await server.close()


async def test_a_token_that_lasts_for_hours_is_not_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("servicekit.kubernetes.configured._CHECK_SECONDS", 0.0)
    ca, plugin = trustme.CA(), Plugin(tmp_path, 3600)
    async with api_server(ca) as serving:
        server = await Kubeconfig(tmp_path, serving, ca, **plugin.user).connect()
        try:
            assert [await shown(server, serving) for _ in range(2)] == ["Bearer token-1"] * 2
            assert plugin.runs == 1
        finally:
            await server.close()


async def test_a_program_that_fails_is_quoted_and_run_again(tmp_path: Path) -> None:
    """Requests that wait for it together fail together, and the next one tries again."""
    ca, plugin = trustme.CA(), Plugin(tmp_path, 1)
    async with api_server(ca) as serving:
        server = await Kubeconfig(tmp_path, serving, ca, **plugin.user).connect()
        try:
            plugin.do("sleep 0.5; echo the login has expired >&2; exit 3")
            await asyncio.sleep(1.1)
            before = plugin.runs
            failed = await asyncio.gather(*(server.request(VERSION) for _ in range(10)), return_exceptions=True)
            assert {type(each) for each in failed} == {ApiUnavailableError}
            assert {str(each) for each in failed} == {"no token: exec: process returned 3. the login has expired"}
            assert plugin.runs == before + 1
            plugin.recover()
            assert await shown(server, serving) == f"Bearer token-{before + 2}"
        finally:
            await server.close()


async def test_a_token_that_is_still_good_is_used_while_its_program_fails(tmp_path: Path) -> None:
    ca, plugin = trustme.CA(), Plugin(tmp_path, 100)
    async with api_server(ca) as serving:
        server = await Kubeconfig(tmp_path, serving, ca, **plugin.user).connect()
        try:
            plugin.do("exit 3")
            assert await shown(server, serving) == "Bearer token-1"
        finally:
            await server.close()


async def test_a_program_that_hangs_is_ended_and_holds_up_nobody(tmp_path: Path) -> None:
    """The event loop goes on; the requests fail with a sentence; no process remains; and the next one tries again."""
    ca, plugin = trustme.CA(), Plugin(tmp_path, 1)
    async with api_server(ca) as serving:
        server = await Kubeconfig(tmp_path, serving, ca, **plugin.user).connect(plugin_seconds=1.0)
        try:
            plugin.do("echo $$ > pid; exec sleep 1000")
            await asyncio.sleep(1.1)
            waiting = asyncio.gather(*(server.request(VERSION) for _ in range(10)), return_exceptions=True)
            longest = last = 0.0
            begun = last = time.monotonic()
            while not waiting.done():
                await asyncio.sleep(0.01)
                longest, last = max(longest, time.monotonic() - last), time.monotonic()
            assert {str(each) for each in await waiting} == {
                "no token: the program that gives the token has not ended within 1 s"
            }
            assert time.monotonic() - begun < PATIENCE / 2
            assert longest < 0.9
            await until(lambda: not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists())
            plugin.recover()
            assert (await shown(server, serving)).startswith("Bearer token-")
        finally:
            await server.close()


async def test_the_program_of_a_cancelled_request_is_ended(tmp_path: Path) -> None:
    ca, plugin = trustme.CA(), Plugin(tmp_path, 1)
    async with api_server(ca) as serving:
        server = await Kubeconfig(tmp_path, serving, ca, **plugin.user).connect()
        try:
            plugin.do("echo $$ > pid; exec sleep 1000")
            await asyncio.sleep(1.1)
            request = asyncio.create_task(server.request(VERSION))
            await until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
            request.cancel()
            await asyncio.gather(request, return_exceptions=True)
            await until(lambda: not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists())
        finally:
            await server.close()


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("echo no account >&2; exit 3", "kubeconfig cannot be used: exec: process returned 3. no account"),
        ("echo garbage; exit 0", "kubeconfig cannot be used: exec: failed to decode process output"),
        ("exec sleep 1000", "the program that gives the token has not ended within 1 s"),
    ],
    ids=["fails", "garbage", "hangs"],
)
async def test_a_program_that_gives_no_first_token_is_an_error_for_a_person(
    tmp_path: Path, line: str, sentence: str
) -> None:
    ca, plugin = trustme.CA(), Plugin(tmp_path, 100)
    plugin.do(line)
    async with api_server(ca) as serving:
        with pytest.raises(ConfigurationError, match=f"no cluster to connect to: .*{sentence}"):
            await Kubeconfig(tmp_path, serving, ca, **plugin.user).connect(plugin_seconds=1.0)


async def test_a_program_that_is_not_there_is_an_error_for_a_person(tmp_path: Path) -> None:
    ca, plugin = trustme.CA(), Plugin(tmp_path, 100)
    plugin.file.unlink()
    async with api_server(ca) as serving:
        with pytest.raises(ConfigurationError, match=r"No such file.*plugin"):
            await Kubeconfig(tmp_path, serving, ca, **plugin.user).connect()


@pytest.mark.parametrize("as_data", [True, False], ids=["data", "files"])
async def test_a_client_certificate_is_shown(tmp_path: Path, *, as_data: bool) -> None:
    """Its files may be named relative to the kubeconfig."""
    ca, clients = trustme.CA(), trustme.CA()
    one = clients.issue_cert("person@example.test", common_name="person")
    [chain], key = one.cert_chain_pems, one.private_key_pem
    if as_data:
        user = {"client-certificate-data": encoded(chain), "client-key-data": encoded(key)}
    else:
        chain.write_to_path(tmp_path / "person.pem")
        key.write_to_path(tmp_path / "person.key")
        user = {"client-certificate": "person.pem", "client-key": "person.key"}
    async with api_server(ca, clients=clients) as serving:
        server = await Kubeconfig(tmp_path, serving, ca, **user).connect()
        try:
            assert await shown(server, serving) == ""
        finally:
            await server.close()
    assert "person" in serving.names


async def test_a_context_has_its_cluster_its_user_and_its_namespace(tmp_path: Path) -> None:
    """A cluster's certificate may be for another name than its URL's, and an address may lack a trusted one."""
    ca = trustme.CA()
    async with api_server(ca, name="api.example.test") as serving:
        file = Kubeconfig(tmp_path, serving, ca, token="one")
        context = {"cluster": "named", "user": "other", "namespace": "away"}
        file.content["contexts"].append({"name": "there", "context": context})
        file.content["contexts"].append({"name": "unchecked", "context": {"cluster": "unchecked", "user": "basic"}})
        named = {**file.cluster, "tls-server-name": "api.example.test"}
        unchecked = {"server": serving.url, "insecure-skip-tls-verify": True}
        file.content["clusters"] += [{"name": "named", "cluster": named}, {"name": "unchecked", "cluster": unchecked}]
        file.content["users"] += [
            {"name": "other", "user": {"token": "two"}},
            {"name": "basic", "user": {"username": "somebody", "password": "three"}},
        ]
        basic = base64.b64encode(b"somebody:three").decode()
        for name, authorization, namespace in (
            ("there", "Bearer two", "away"),
            ("unchecked", f"Basic {basic}", "default"),
        ):
            server = await file.connect(name)
            try:
                assert await shown(server, serving) == authorization
                assert server.namespace == namespace
            finally:
                await server.close()
        server = await file.connect()
        try:
            with pytest.raises(ApiUnavailableError, match=r"[Cc]ertificate|[Hh]ostname"):
                await server.request(VERSION)
        finally:
            await server.close()


def test_a_user_without_a_home_can_use_a_cluster() -> None:
    """The library looks for the home when it is imported, and a container's user may have none."""
    homeless = "import os, pwd; os.environ.pop('HOME', None); pwd.getpwuid = {}.__getitem__"
    code = f"{homeless}; import servicekit.kubernetes.configured"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_library_is_read_without_its_validation_of_manifests() -> None:
    """Where its packages are installed, as in a checkout, importing them would cost each command 3.5 s."""
    code = (
        "import sys, servicekit.kubernetes.configured; print({'kubernetes_validate', 'jsonschema'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
