"""Links that sign a browser in once: a command makes them, and a supervisor prints one at a terminal."""

import asyncio
import os
import pty
import re
import signal
import sys
import time
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import aiohttp
import pytest

from servicekit.settings import load
from supervisor.__main__ import main
from supervisor.identity.tokens import Operator, SignInCode, Tokens, Viewer
from supervisor.settings import PREFIX, Settings
from tests.supervisor.observability.page.page_world import post
from tests.testkit.serving import Served
from tests.testkit.waiting import PATIENCE


def _code(link: str, directory: Path) -> SignInCode:
    (text,) = parse_qs(urlsplit(link).query)["code"]
    found = Tokens.load(directory).authenticate(f"Bearer {text}")
    assert isinstance(found, SignInCode)
    return found


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ([], (Viewer(), "http://127.0.0.1:8471")),
        (["--name", "ann"], (Operator(name="ann"), "http://127.0.0.1:8471")),
        (["--url", "https://page.example/x/"], (Viewer(), "https://page.example/x")),
    ],
)
def test_the_command_prints_a_link(
    arguments: list[str],
    shown: tuple[Viewer, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(f"{PREFIX}DATA_DIR", str(tmp_path))
    assert main(["sign-in", *arguments]) == 0
    said = capsys.readouterr()
    link = said.out.strip()
    code = _code(link, tmp_path)
    assert (code.who, link.partition("/status/login?code=")[0]) == shown
    assert code.until == pytest.approx(time.time() + 900, abs=60)
    assert "within 15 minutes" in said.err


@pytest.mark.parametrize("minutes", ["0", "-1", "nan", "2000", "soon"])
def test_a_link_does_not_last(minutes: str) -> None:
    with pytest.raises(SystemExit):
        main(["sign-in", "--minutes", minutes])


def test_with_a_certificate_a_link_is_one_to_https() -> None:
    settings = load(Settings, PREFIX, {f"{PREFIX}TLS_CERT_FILE": "/cert", f"{PREFIX}TLS_KEY_FILE": "/key"})
    assert settings.page_url == "https://127.0.0.1:8471"


async def test_a_command_of_the_same_data_directory_makes_links_for_a_running_supervisor(served: Served) -> None:
    link = served.peers.tokens.link(Operator(name="ann"), served.peers.http, time.time(), 60)
    (code,) = parse_qs(urlsplit(link).query)["code"]
    assert (await post(served.peers, "/status/login", data={"code": code})).status == 303


async def test_a_supervisor_at_a_terminal_prints_a_link_for_its_owner(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    environment = {
        **os.environ,
        f"{PREFIX}DATA_DIR": str(tmp_path),
        f"{PREFIX}GRPC_ADDRESS": "127.0.0.1:0",
        f"{PREFIX}HTTP_ADDRESS": "127.0.0.1:0",
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "supervisor",
        "serve",
        env=environment,
        stdin=theirs,
        stderr=theirs,
        stdout=asyncio.subprocess.DEVNULL,
    )
    os.close(theirs)
    try:
        said = b""
        async with asyncio.timeout(PATIENCE):
            while not (found := re.search(rb"(http://\S+/status/login\?code=\S+)", said)):
                said += await asyncio.to_thread(os.read, ours, 4096)
        async with aiohttp.ClientSession() as browser, browser.get(found[1].decode()) as answer:
            assert "Sign in as owner" in await answer.text()
    finally:
        process.send_signal(signal.SIGTERM)
        await process.wait()
        os.close(ours)
