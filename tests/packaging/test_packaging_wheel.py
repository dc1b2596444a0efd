"""The wheel of the services as it is built and installed, also beside supervisord with its package of the same name."""

import shutil
import subprocess
import sys
import sysconfig
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

from tests.packaging.packaging_environment import PackagingEnvironment
from tests.testkit.server_process import started

_COMMANDS = ("elastic-job-supervisor", "elastic-node-agent", "elastic-state-keeper", "job-supervisor")
_SUPERVISORD = "supervisor==4.3.0 --hash=sha256:0bcb763fddafba410f35cbde226aa7f8514b9fb82eb05a0c85f6588d1c13f8db"


@pytest.fixture(scope="session")
def supervisord(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("supervisord")
    (home / "requirements.txt").write_text(_SUPERVISORD)
    options = ["--quiet", "--no-deps", "--only-binary=:all:", "--require-hashes", "--dest", str(home)]
    command = [sys.executable, "-m", "pip", "download", *options, "-r", str(home / "requirements.txt")]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if "THESE PACKAGES DO NOT MATCH" in done.stderr:
        pytest.fail(done.stderr)
    if done.returncode:
        pytest.skip(f"supervisord cannot be had: {done.stderr.strip()[-200:]}")
    return next(home.glob("*.whl"))


def test_it_adds_one_package_to_an_environment(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.partition("/")[0] for name in archive.namelist()}
        below = {name.split("/")[2] for name in archive.namelist() if "/_packages/" in name}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"elastic_job_supervisor"}
    assert below == {"job_supervisor", "node_agent", "reclaim", "servicekit", "supervisor", "trainingjob_operator"}


def test_its_extras_are_for_users_only(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith("/METADATA")]
        metadata = message_from_bytes(archive.read(name))
    assert set(metadata.get_all("Provides-Extra") or ()) == {"agent", "cli", "server", "tracing"}
    assert metadata["Author"] == "The Elastic Job Supervisor authors"
    assert "Programming Language :: Python :: 3.11" in (metadata.get_all("Classifier") or ())


def test_its_commands_run(wheel: Path, environment: PackagingEnvironment) -> None:
    environment.install(wheel)
    for command in _COMMANDS:
        shown = environment.run(command, "--help")
        assert (shown.returncode, shown.stderr) == (0, "")
        assert shown.stdout.startswith(f"usage: {command}")
    plugin = environment.run("kubectl-job_supervisor", "--help")
    assert plugin.stdout.startswith("usage: kubectl job-supervisor ")
    wrong = environment.run("elastic-job-supervisor", "token", "viewer", "--days", "0")
    assert (wrong.returncode, wrong.stdout) == (64, ""), wrong.stderr


async def test_the_installed_supervisor_serves_its_page(
    wheel: Path, environment: PackagingEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Templates and other files that are not modules are in the wheel, and nothing of the checkout is needed."""
    environment.install(wheel)
    monkeypatch.setenv("PYTHONPATH", sysconfig.get_path("purelib"))
    command = [str(environment.home / "bin" / "elastic-job-supervisor")]
    async with started(tmp_path / "data", command) as running:
        async with running.peers.session.get(running.peers.http + "/") as response:
            assert response.status == 401  # It asks for a token.
            assert "<html" in await response.text()
        running.process.terminate()
        assert await running.ended() == 0


@pytest.mark.parametrize("ours_first", [True, False])
def test_it_may_be_installed_beside_supervisord(
    wheel: Path, supervisord: Path, environment: PackagingEnvironment, *, ours_first: bool
) -> None:
    """Both work, in either order, and each may go without harming the other."""
    for each in (wheel, supervisord) if ours_first else (supervisord, wheel):
        environment.install(each)
    assert environment.owned("elastic_job_supervisor") & environment.owned("supervisor") == set()
    for command in _COMMANDS:
        assert environment.run(command, "--help").stdout.startswith(f"usage: {command}")
    assert environment.run("supervisord", "--version").stdout == "4.3.0\n"
    assert environment.pip("uninstall", "supervisor" if ours_first else "elastic-job-supervisor").returncode == 0
    if ours_first:
        assert environment.run("job-supervisor", "--help").returncode == 0
    else:
        assert environment.run("supervisord", "--version").stdout == "4.3.0\n"


def test_an_installation_of_the_agent_alone_says_so(wheel: Path, environment: PackagingEnvironment) -> None:
    environment.install(wheel)
    for package in ("job_supervisor", "supervisor"):
        shutil.rmtree(environment.packages / "elastic_job_supervisor" / "_packages" / package)
    assert environment.run("elastic-node-agent", "--help").returncode == 0
    refused = environment.run("job-supervisor", "status")
    assert (refused.returncode, refused.stderr) == (
        1,
        "job-supervisor: this installation does not contain job_supervisor; the agent's image has the agent only\n",
    )
