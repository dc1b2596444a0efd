"""Tokens: each is good for one thing, and only the supervisor can make one."""

import base64
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import jwt
import pytest
from aiohttp.test_utils import make_mocked_request

from supervisor.__main__ import main
from supervisor.domain.ids import Host, JobName
from supervisor.identity.tokens import (
    SECRET_FILE,
    AgentPrincipal,
    BadTokenError,
    LauncherPrincipal,
    Operator,
    Principal,
    ProcessPrincipal,
    SecretError,
    Tokens,
    Viewer,
)
from supervisor.ingest.errors import ForeignTokenError
from supervisor.ingest.http import require_principal
from tests.testkit.serving import PeerRefusal, Served, launcher_hello

SECRET = b"s" * 64
TOKENS = Tokens(SECRET)
CLAIMS = {"kind": "agent", "node": "n1", "aud": "elastic-job-supervisor"}
NO_TEXTS: list[object] = [[], {}, None, 7.5]
NO_NAMES: list[object] = [*NO_TEXTS, 7, ["me"], "", "n\n1", "n" * 254, "\x1b"]
NAMED = ["launcher", "operator"]
PROCESS = {"kind": "process", "job": "j", "uid": "u", "run": 1, "aud": "elastic-job-supervisor"}


def signed(claims: dict[str, Any], *, secret: bytes = SECRET, algorithm: str = "HS256") -> str:
    return jwt.encode(claims, secret, algorithm=algorithm)


def unsigned() -> str:
    parts = [{"alg": "none", "typ": "JWT"}, CLAIMS]
    return ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in parts) + "."


@pytest.mark.parametrize(
    ("token", "principal"),
    [
        (TOKENS.agent("n1"), AgentPrincipal(Host("n1"))),
        (TOKENS.launcher("me"), LauncherPrincipal("me")),
        (TOKENS.process("job", "uid", 3), ProcessPrincipal(JobName("job"), "uid", 3)),
        (TOKENS.viewer(), Viewer()),
        (TOKENS.operator("me"), Operator(name="me")),
    ],
)
def test_a_token_names_its_bearer(token: str, principal: object) -> None:
    assert TOKENS.authenticate(f"Bearer {token}") == principal
    assert TOKENS.authenticate(f"bearer {token}") == principal


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        f"Basic {TOKENS.agent('n1')}",
        TOKENS.agent("n1"),
        "Bearer garbage",
        "Bearer a.b.c",
        "Bearer \udcff\udcfe",
        f"Bearer {TOKENS.agent('n1')[:-2]}",
        f"Bearer {Tokens(b'o' * 64).agent('n1')}",
        f"Bearer {unsigned()}",
        f"Bearer {signed(CLAIMS, algorithm='HS512')}",
        f"Bearer {signed({**CLAIMS, 'aud': 'somebody-else'})}",
        f"Bearer {signed({'kind': 'agent', 'node': 'n1'})}",
        f"Bearer {signed({**CLAIMS, 'exp': int(time.time()) - 60})}",
        f"Bearer {signed({**CLAIMS, 'kind': 'god'})}",
        f"Bearer {signed({'aud': CLAIMS['aud'], 'kind': 'agent'})}",
        f"Bearer {signed({'aud': CLAIMS['aud']})}",
        f"Bearer {signed({**CLAIMS, 'exp': float('inf')})}",
        *(f"Bearer {signed({**CLAIMS, 'kind': kind})}" for kind in NO_NAMES),
        *(f"Bearer {signed({**CLAIMS, 'node': node})}" for node in NO_NAMES),
        *(f"Bearer {signed({**CLAIMS, 'kind': kind, 'name': name})}" for kind in NAMED for name in NO_NAMES),
        *(f"Bearer {signed({**PROCESS, name: value})}" for name in PROCESS if name != "aud" for value in NO_TEXTS),
        f"Bearer {signed({**PROCESS, 'run': 'x'})}",
    ],
)
def test_a_bad_token_is_refused(header: str | None) -> None:
    with pytest.raises(BadTokenError):
        TOKENS.authenticate(header)


@pytest.mark.parametrize(
    "given", [["agent", "--node", "n1"], ["launcher", "--name", "me"], ["operator", "--name", "me"], ["viewer"]]
)
def test_a_token_lasts_for_so_many_days(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], given: list[str]
) -> None:
    monkeypatch.setenv("JOB_SUPERVISOR_DATA_DIR", str(tmp_path))
    default = 365 if given[0] in ("agent", "launcher") else 30
    for days in (["--days", "1.5"], [], ["--days", "never"]):
        assert main(["token", *given, *days]) == 0
    said = capsys.readouterr()
    until, by_default, for_ever = [_claims(token).get("exp") for token in said.out.split()]
    assert until == pytest.approx(time.time() + 1.5 * 86400, abs=60)
    assert by_default == pytest.approx(time.time() + default * 86400, abs=60)
    assert for_ever is None
    sentences = said.err.splitlines()
    assert f"expires on {datetime.fromtimestamp(until, UTC):%Y-%m-%d %H:%M} UTC" in sentences[0]
    assert f"expires on {datetime.fromtimestamp(by_default, UTC):%Y-%m-%d %H:%M} UTC" in sentences[1]
    assert "never expires" in sentences[2]


def test_a_token_that_has_expired_is_told_from_one_that_is_not_ours() -> None:
    with pytest.raises(BadTokenError, match="the token has expired"):
        TOKENS.authenticate(f"Bearer {TOKENS.viewer(time.time() - 1)}")
    with pytest.raises(BadTokenError, match="the token is not from this supervisor"):
        TOKENS.authenticate(f"Bearer {Tokens(b'x' * 32).viewer(time.time() - 1)}")


def test_a_token_that_was_accepted_before_is_refused_once_it_has_expired(monkeypatch: pytest.MonkeyPatch) -> None:
    until = int(time.time()) + 3600
    header = f"Bearer {TOKENS.viewer(until)}"
    assert TOKENS.authenticate(header) == Viewer(until=until)
    monkeypatch.setattr(time, "time", lambda: until)
    with pytest.raises(BadTokenError, match="the token has expired"):
        TOKENS.authenticate(header)


@pytest.mark.parametrize("days", ["0", "-1", "nan", "inf", "40000", "soon"])
def test_days_that_are_none_are_refused(days: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["token", "viewer", "--days", days])
    assert ended.value.code != 0


@pytest.mark.parametrize("name", ["", "n\n1", "n" * 254, "\x1b[2J", "\udcff", "\u202e"])
@pytest.mark.parametrize("option", [["agent", "--node"], ["launcher", "--name"], ["operator", "--name"]])
def test_a_name_that_no_wire_takes_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    option: list[str],
    name: str,
) -> None:
    monkeypatch.setenv("JOB_SUPERVISOR_DATA_DIR", str(tmp_path))
    with pytest.raises(SystemExit) as ended:
        main(["token", *option, name])
    assert ended.value.code == 64
    assert "a name must have 1 to 253 printable characters" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


async def test_what_only_the_secret_can_sign_and_makes_no_sense_is_refused(served: Served) -> None:
    """On the wire, too: none of it is a fault of the supervisor."""
    tokens = served.peers.tokens
    process = tokens._sign({"kind": "process", "job": "j", "uid": "u", "run": []})
    launcher = tokens._sign({"kind": "launcher", "name": ["me"]})
    assert await served.peers.post("/v1/processes/report", process, {}) == PeerRefusal(401, "bad_token")
    assert await served.peers.post("/v1/launchers/stream", launcher, {}) == PeerRefusal(401, "bad_token")
    agent = served.peers.stranger(tokens._sign({"kind": "agent", "node": ["n1"]}))
    assert await agent.ended() is grpc.StatusCode.UNAUTHENTICATED


def _claims(token: str) -> dict[str, Any]:
    claims: dict[str, Any] = jwt.decode(token, options={"verify_signature": False})
    return claims


def test_the_good_token_that_the_bad_ones_are_made_from_is_accepted() -> None:
    assert TOKENS.authenticate(f"Bearer {signed(PROCESS)}") == ProcessPrincipal(JobName("j"), "u", 1)
    assert TOKENS.authenticate(f"Bearer {signed(CLAIMS)}") == AgentPrincipal(Host("n1"))
    assert TOKENS.authenticate(f"Bearer {signed({**CLAIMS, 'exp': int(time.time()) + 60})}") == AgentPrincipal(
        Host("n1")
    )


@pytest.mark.parametrize(
    ("path", "own"),
    [
        ("/v1/launchers/stream", "launcher"),
        ("/v1/launchers/report", "launcher"),
        ("/v1/processes/stream", "process"),
        ("/v1/processes/report", "process"),
        ("/v1/drills", "operator"),
        ("/v1/drills/end", "operator"),
    ],
)
async def test_a_token_is_good_for_its_own_calls_only(served: Served, path: str, own: str) -> None:
    tokens = served.peers.tokens
    kinds: dict[str, str] = {
        "agent": tokens.agent("n1"),
        "launcher": tokens.launcher("me"),
        "process": tokens.process("job", "uid", 1),
        "viewer": tokens.viewer(),
        "operator": tokens.operator("me"),
    }
    body = launcher_hello("job", ["n1"])
    for kind, token in kinds.items():
        if kind != own:
            assert await served.peers.post(path, token, body) == PeerRefusal(403, "foreign_token")
    assert await served.peers.post(path, None, body) == PeerRefusal(401, "bad_token")
    assert await served.peers.post(path, "forged", body) == PeerRefusal(401, "bad_token")


def test_the_secret_is_for_its_owner_alone(tmp_path: Path) -> None:
    """It is made with mode 0600, kept, and refused once others can read it."""
    token = Tokens.load(tmp_path).agent("n1")
    path = tmp_path / SECRET_FILE
    assert path.stat().st_mode & 0o777 == 0o600
    assert Tokens.load(tmp_path).authenticate(f"Bearer {token}") == AgentPrincipal(Host("n1"))
    for mode in (0o640, 0o604, 0o660):
        path.chmod(mode)
        with pytest.raises(SecretError, match="owner alone"):
            Tokens.load(tmp_path)


def test_a_secret_that_is_too_short_is_refused(tmp_path: Path) -> None:
    path = tmp_path / SECRET_FILE
    path.touch(mode=0o600)
    with pytest.raises(SecretError, match="too short"):
        Tokens.load(tmp_path)


def test_first_starts_at_the_same_moment_agree_on_one_secret(tmp_path: Path) -> None:
    """Every token that any of them made is good for all, and nothing else is left behind."""
    together = threading.Barrier(8)

    def start() -> Tokens:
        together.wait()
        return Tokens.load(tmp_path)

    with ThreadPoolExecutor(8) as pool:
        tokens = [each.result() for each in [pool.submit(start) for _ in range(8)]]
    token = tokens[0].agent("n1")
    assert {each.authenticate(f"Bearer {token}") for each in tokens} == {AgentPrincipal(Host("n1"))}
    assert [path.name for path in tmp_path.iterdir()] == [SECRET_FILE]


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (LauncherPrincipal, "a launcher"),
        (ProcessPrincipal, "a process"),
        (Operator, "an operator"),
        (Viewer, "a viewer"),
    ],
)
async def test_a_refusal_names_the_principal_that_is_needed(kind: type[Principal], words: str) -> None:
    async def authenticate(_header: str | None) -> Principal:
        return AgentPrincipal(Host("n1"))

    with pytest.raises(ForeignTokenError, match=f"^this needs the token of {words}$"):
        await require_principal(kind, make_mocked_request("POST", "/"), authenticate)
