"""The command's error messages say what to do, and each has its exit code."""

import subprocess
import sys
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from simulator.certificates import SimulatedAuthority
from tests.job_supervisor.cli.cli_running import RunHere, Said, run
from tests.testkit.serving import Served


def test_no_supervisor_has_served_there(run_here: RunHere, tmp_path: Path) -> None:
    said = run_here("status", "--data-dir", tmp_path)
    assert (said.code, said.out) == (69, "")
    assert "no supervisor has been started there" in said.err
    assert run_here("status", "--data-dir", tmp_path) == said, "it has made what it missed"


async def test_the_supervisor_does_not_serve_any_more(served: Served, tmp_path: Path) -> None:
    await served.stop()
    said = await run("status", "--data-dir", tmp_path)
    assert said.code == 69
    assert said.err == f"No supervisor answers at {served.peers.http}: Connection refused.\n"


async def test_a_wrong_token(served: Served, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("forged")
    said = await run("status", "--address", served.peers.http, "--token-file", file)
    assert said.code == 77
    assert "elastic-job-supervisor token viewer" in said.err


async def test_who_only_looks_holds_no_drill(served: Served, tmp_path: Path) -> None:
    await served.peers.agent("n1")
    file = tmp_path / "token"
    file.write_text(served.peers.tokens.viewer())
    where = ("--address", served.peers.http, "--token-file", file)
    assert (await run("status", *where)).code == 0
    said = await run("simulate", "n1", "--yes", *where)
    assert said.code == 77
    assert "this needs the token of an operator" in said.err
    assert "elastic-job-supervisor token operator" in said.err
    assert not served.notices()


@pytest.mark.parametrize(("content", "part"), [("", "is empty"), (None, "cannot be read")])
def test_a_token_that_is_not_there(run_here: RunHere, tmp_path: Path, content: str | None, part: str) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_text(content)
    said = run_here("status", "--address", "http://127.0.0.1:1", "--token-file", file)
    assert said.code == 64
    assert part in said.err


async def test_an_unknown_job(served: Served, tmp_path: Path) -> None:  # noqa: ARG001
    said = await run("explain", "resnet", "--data-dir", tmp_path)
    assert said.code == 66
    assert said.err == "There is no supervised job resnet. `job-supervisor status` lists all jobs.\n"


async def test_an_unknown_node(served: Served, tmp_path: Path) -> None:  # noqa: ARG001
    said = await run("simulate", "n1", "--yes", "--data-dir", tmp_path)
    assert said.code == 66
    assert (said.out, said.err) == ("", "No agent has the name n1. `job-supervisor nodes` lists them.\n")


async def test_a_certificate_that_is_not_trusted(
    secured: Served, tmp_path: Path, authority: SimulatedAuthority
) -> None:
    directory = tmp_path / "secured"
    said = await run("status", "--data-dir", directory)
    assert said.code == 76
    assert "--ca-file" in said.err
    assert "Traceback" not in said.err
    assert (await run("status", "--data-dir", directory, "--ca-file", authority.ca_file)).code == 0
    assert secured.peers.http.startswith("https://")


async def test_one_side_alone_speaks_tls(served: Served, secured: Served, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("any")
    plain = await run("status", "--address", secured.peers.http.replace("https", "http"), "--token-file", file)
    assert (plain.code, "Is it https://?" in plain.err) == (69, True), plain.err
    tls = await run("status", "--address", served.peers.http.replace("http", "https"), "--token-file", file)
    assert (tls.code, "Is it http://?" in tls.err) == (76, True), tls.err


async def test_somebody_else_answers(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("any")
    command = (sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1", "--directory", str(tmp_path))
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as other:  # noqa: ASYNC220
        assert other.stdout is not None
        port = other.stdout.readline().split(" port ")[1].split()[0]
        said = await run("status", "--address", f"http://127.0.0.1:{port}", "--token-file", file)
        other.terminate()
    assert said.code == 76
    assert "is not a supervisor" in said.err


async def test_what_somebody_else_says_commands_no_terminal(tmp_path: Path) -> None:
    async def answer(_request: web.Request) -> web.Response:
        return web.json_response({"error": "bad_token", "message": "\x1b[2Jgone\r\x9b"}, status=401)

    app = web.Application()
    app.router.add_get("/v1/status", answer)
    file = tmp_path / "token"
    file.write_text("any")
    async with TestServer(app) as server:
        said = await run("status", "--address", str(server.make_url("")), "--token-file", file)
    assert said.code == 77
    assert "[2Jgone" in said.err
    assert not {"\x1b", "\r", "\x9b"} & set(said.err)


async def test_what_somebody_else_says_forges_no_row(tmp_path: Path) -> None:
    """The message of one notice is one row of the table, whatever newlines are in it."""
    notice = {
        "id": "a",
        "source": "metadata",
        "subject": "n1",
        "state": "active",
        "message": "x\r\nnode/n9  1 s  FAKE",
    }

    async def answer(_request: web.Request) -> web.Response:
        return web.json_response({"now": 0, "jobs": [], "notices": [notice]})

    app = web.Application()
    app.router.add_get("/v1/status", answer)
    file = tmp_path / "token"
    file.write_text("any")
    async with TestServer(app) as server:
        said = await run("status", "--address", str(server.make_url("")), "--token-file", file)
    assert said.code == 0, said.err
    assert [line.split()[0] for line in said.out.splitlines() if line] == ["No", "SUBJECT", "node/n1"]


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["nonsense"],
        ["explain"],
        ["status", "--interval", "0"],
        ["simulate", "n1", "--lead", "0"],
        ["simulate", "n1", "--lead", "2h"],
        ["simulate", "n1", "--lead", "soon"],
        ["simulate", "n1", "--lead", "nan"],
        ["status", "--address", "gpu-1:8471", "--token-file", "/dev/null"],
        ["status", "--address", "http://127.0.0.1:1"],
    ],
)
def test_wrong_usage(run_here: RunHere, arguments: list[str]) -> None:
    said = run_here(*arguments)
    assert (said.code, said.out) == (64, "")
    assert said.err
    assert "Traceback" not in said.err


async def test_a_drill_of_a_pod_is_a_clusters(served: Served, tmp_path: Path) -> None:  # noqa: ARG001
    said = await run("simulate", "pod/ns/p", "--yes", "--data-dir", tmp_path)
    assert said.code == 64
    assert "pods need --kubeconfig" in said.err


async def test_a_data_directory_that_others_may_read_makes_no_token(served: Served, tmp_path: Path) -> None:  # noqa: ARG001
    (tmp_path / "token-secret").chmod(0o644)
    said = await run("status", "--data-dir", tmp_path)
    assert said.code == 77
    assert "chmod 600" in said.err


def test_no_cluster_and_no_supervisor_are_named(run_here: RunHere, tmp_path: Path) -> None:
    said = run_here("status", cwd=tmp_path)
    assert (said.code, said.out) == (64, "")
    assert said.err == (
        "There is no cluster to connect to: there is no ~/.kube/config. "
        "Name a supervisor with --address or --data-dir, or a cluster with --kubeconfig or KUBECONFIG.\n"
    )


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("apiVersion: v1\n", "has no current context (`kubectl config use-context` sets it)"),
        ("apiVersion: v1\ncontexts: []\nclusters: []\n", "has no context there (`kubectl config get-contexts`"),
        ("contexts: [", "cannot be used: while parsing a flow node"),
    ],
)
def test_a_kubeconfig_that_is_not_usable_is_explained(
    run_here: RunHere, tmp_path: Path, content: str, why: str
) -> None:
    file = tmp_path / "config"
    file.write_text(content)
    named = ["--context", "there"] if "contexts: []" in content else []
    said = run_here("status", "--kubeconfig", file, *named)
    assert (said.code, said.out) == (78, "")
    assert said.err.startswith(f"There is no cluster to connect to: {file} {why}")
    assert len(said.err.splitlines()) == 1


def test_a_variable_that_is_wrong_is_named(run_here: RunHere, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("any")
    where = {"SUPERVISOR_CLI_ADDRESS": "https://127.0.0.1:1", "SUPERVISOR_CLI_TOKEN_FILE": str(file)}
    said = run_here("status", **where, SUPERVISOR_CLI_CA_FILE=str(file))
    assert said.code == 78
    assert said.err.startswith(f"SUPERVISOR_CLI_CA_FILE: {file} contains no usable CA certificate")


@pytest.mark.parametrize(
    "address", ["http://gpu-1:8471", "http://0.0.0.0:8471", "http://127.0.0.1@gpu-1:8471", "http://localhost.x:1"]
)
def test_no_token_travels_in_the_clear(run_here: RunHere, tmp_path: Path, address: str) -> None:
    """Beyond loopback plain HTTP is refused before anybody is asked, as launchers and agents refuse it."""
    file = tmp_path / "token"
    file.write_text("any")
    said = run_here("status", "--address", address, "--token-file", file)
    assert (said.code, said.out) == (64, "")
    assert said.err == "Only https:// is allowed beyond this machine, as every call carries the token.\n"
    by_environment = run_here("status", SUPERVISOR_CLI_ADDRESS=address, SUPERVISOR_CLI_TOKEN_FILE=str(file))
    assert by_environment == Said(78, "", f"SUPERVISOR_CLI_ADDRESS: {said.err}")


async def test_the_port_for_agents_is_recognized(served: Served, tmp_path: Path) -> None:
    """Commands that were given the other one of the two ports."""
    (tmp_path / "token").write_text(served.peers.tokens.viewer())
    address = f"http://{served.peers.grpc}"
    said = await run("status", "--address", address, "--token-file", tmp_path / "token")
    assert (said.code, said.out) == (69, "")
    assert f"{address} does not speak HTTP/1.1. Is it the port for agents?" in said.err


def test_options_that_every_command_has_may_stand_before_it(run_here: RunHere, tmp_path: Path) -> None:
    """As kubectl takes them, which passes them on to a plugin in that order."""
    missing = tmp_path / "kubeconfig"
    behind = run_here("status", "--kubeconfig", missing, "-n", "ml", "-o", "json")
    before = run_here("--kubeconfig", missing, "-n", "ml", "-o", "json", "status")
    apart = run_here(f"--kubeconfig={missing}", "status", "-n", "ml", "-o", "json")
    assert before == behind == apart
    assert "kubeconfig" in before.err
    assert run_here("-A", "status", "--kubeconfig", missing).code == behind.code
    assert run_here("--context").code == 64


async def test_no_token_follows_to_another_address(tmp_path: Path) -> None:
    shown: list[str] = []

    async def elsewhere(request: web.Request) -> web.Response:
        shown.append(request.path)
        raise web.HTTPTemporaryRedirect("/v1/elsewhere")

    app = web.Application()
    app.router.add_get("/{any:.*}", elsewhere)
    file = tmp_path / "token"
    file.write_text("any")
    async with TestServer(app) as server:
        said = await run("status", "--address", str(server.make_url("")), "--token-file", file)
    assert said.code == 76
    assert shown == ["/v1/status"]


def test_the_help_names_every_exit_code_and_what_a_drill_does(run_here: RunHere) -> None:
    shown = run_here("--help").out
    for code in ("0", "64", "66", "69", "75", "76", "77", "78", "130"):
        assert f"\n  {code} " in shown
    assert "really happens" in run_here("simulate", "--help").out


def test_the_command_loads_no_server() -> None:
    code = (
        "import sys, job_supervisor.cli.command\n"
        "heavy = ('grpc', 'kubernetes_asyncio', 'supervisor.wiring.app', 'supervisor.serving.servers', 'sqlite3')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    found = subprocess.run((sys.executable, "-c", code), capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
