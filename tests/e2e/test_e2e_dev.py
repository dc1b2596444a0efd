"""`elastic-job-supervisor dev`: real processes of a whole stand-alone installation, from an empty environment."""

import os
import signal
import socket
import subprocess
import sysconfig
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from job_supervisor.cli.data_dir import default_directory
from job_supervisor.dev.scene import GRPC_PORT, HTTP_PORT
from simulator.cloud.process import MARK, end, leftovers
from tests.testkit.waiting import NotYet, wait_until

SCRIPTS = Path(sysconfig.get_path("scripts"))


@dataclass(frozen=True, slots=True)
class Dev:
    process: subprocess.Popen[bytes]
    home: Path

    @property
    def directory(self) -> Path:
        return default_directory({"HOME": str(self.home)})

    def said(self) -> str:
        return (self.home / "out").read_text()

    def until_said(self, text: str) -> None:
        def look() -> bool:
            assert self.process.poll() is None or text in self.said(), self.said()
            return text in self.said()

        wait_until(look, lambda: f"{text!r} in {self.said()}")

    def code(self) -> int:
        wait_until(lambda: self.process.poll() is not None, self.said)
        return self.process.returncode

    def leaves_nothing(self) -> None:
        wait_until(lambda: not leftovers(self.home), lambda: leftovers(self.home))

    def command(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [SCRIPTS / "job-supervisor", *arguments],
            env=_environment(self.home),
            cwd=self.home,
            capture_output=True,
            text=True,
            check=False,
        )


def _environment(home: Path) -> dict[str, str]:
    return {"HOME": str(home), "PATH": os.defpath, MARK: str(home)}


@contextmanager
def _started(home: Path, *arguments: str) -> Iterator[Dev]:
    with (home / "out").open("wb") as out:
        process = subprocess.Popen(
            [SCRIPTS / "elastic-job-supervisor", "dev", *arguments],
            env=_environment(home),
            cwd=home,
            stdout=out,
            stderr=out,
        )
    try:
        yield Dev(process, home)
    finally:
        process.kill()
        process.wait()
        for left in leftovers(home):
            end(left.pid, home)


@pytest.mark.long
def test_the_drill_passes_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with _started(tmp_path, "--drill") as dev:
        assert dev.code() == 0, dev.said()
        dev.leaves_nothing()
        assert "The drill has passed." in dev.said()
        assert "FAILED" not in dev.said()
        assert " 0 steps were lost" in dev.said()


def test_make_starts_the_same_command() -> None:
    shown = subprocess.run(
        ["make", "--dry-run", "--no-print-directory", "dev", "ARGS=--drill"],  # noqa: S607 - the user's make
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout.splitlines()[-1] == ".venv/bin/elastic-job-supervisor dev --drill"


def _taken(port: int) -> socket.socket:
    """Another test may use the port for a moment."""
    try:
        return socket.create_server(("127.0.0.1", port))
    except OSError as error:
        raise NotYet(str(error)) from error


def test_it_takes_other_ports_and_the_command_finds_it_until_ctrl_c(tmp_path: Path) -> None:
    with ExitStack() as stack:
        for port in (GRPC_PORT, HTTP_PORT):
            with suppress(AssertionError):  # Another program keeps it, which serves as well.
                stack.enter_context(wait_until(lambda: _taken(port), seconds=30))  # noqa: B023 - called at once
        with _started(tmp_path, "--hosts", "2") as dev:
            dev.until_said("The job is Running")
            assert f"Another program uses port {HTTP_PORT}: taking a free port" in dev.said()
            explained = dev.command("explain", "sample")
            assert "sample is Running" in explained.stdout, explained.stderr
            assert not explained.stderr  # There is no cluster that it could hide.
            token = (dev.directory / "viewer.token").read_text().strip()
            assert token not in dev.said()
            modes = {path.stat().st_mode & 0o077 for path in dev.directory.rglob("*.token")}
            assert modes == {0}
            dev.process.send_signal(signal.SIGINT)
            assert dev.code() == 0, dev.said()
            dev.leaves_nothing()
            assert [path.name for path in dev.directory.iterdir()] == ["dev.lock"]
            assert "There is no cluster to connect to" in dev.command("status").stderr


def _pid(home: Path, word: str) -> int:
    return next(one.pid for one in leftovers(home) if word in one.command)


def test_an_agent_that_is_killed_is_started_again(tmp_path: Path) -> None:
    """As a kubelet or systemd starts it again: the kernel kills agents that are frozen."""
    with _started(tmp_path, "--hosts", "1") as dev:
        dev.until_said("The job is Running")
        os.kill(_pid(tmp_path, "elastic-node-agent"), signal.SIGKILL)
        dev.until_said("The agent of host-1 was ended by SIGKILL. Starting it again.")
        wait_until(lambda: "  connected" in (shown := dev.command("nodes").stdout) and shown)
        dev.process.send_signal(signal.SIGINT)
        assert dev.code() == 0, dev.said()
        dev.leaves_nothing()


@pytest.mark.parametrize("name", ["kubeai-run", pytest.param("The supervisor", marks=pytest.mark.long)])
def test_it_says_which_process_has_failed_and_ends_the_others(tmp_path: Path, name: str) -> None:
    words = {"kubeai-run": "kubeai-run", "The supervisor": "serve"}
    with _started(tmp_path, "--hosts", "1") as dev:
        dev.until_said("The job is Running")
        os.kill(_pid(tmp_path, words[name]), signal.SIGKILL)
        assert dev.code() == 1, dev.said()
        assert f"{name} was ended by SIGKILL." in dev.said()
        dev.leaves_nothing()


def test_nothing_outlives_a_dev_that_is_killed(tmp_path: Path) -> None:
    with _started(tmp_path, "--hosts", "2") as dev:
        dev.until_said("The job is Running")
        dev.process.kill()
        dev.leaves_nothing()


def test_an_own_job_is_run_to_its_end(tmp_path: Path) -> None:
    """The command sees the commands of this installation, and its output is on the terminal."""
    with _started(tmp_path, "--hosts", "2", "--", "sh", "-c", "kubeai-discover-hosts; echo own job") as dev:
        assert dev.code() == 0, dev.said()
        # What dev itself says may stand between the lines of the job.
        own = {"host-1", "host-2", "own job"}
        assert [line for line in dev.said().splitlines() if line in own] == ["host-1", "host-2", "own job"]
        assert "The job has ended successfully." in dev.said()
        dev.leaves_nothing()


def test_a_supervisor_alone_says_why_a_second_one_cannot_start(tmp_path: Path) -> None:
    with _started(tmp_path, "--hosts", "1", "--no-job") as dev:
        dev.until_said("Ctrl-C ends everything")
        second = subprocess.run(
            [SCRIPTS / "elastic-job-supervisor", "dev", "--data-dir", dev.directory],
            env=_environment(tmp_path),
            capture_output=True,
            text=True,
            check=False,
        )
        assert second.returncode == 64
        assert f"Another `dev` runs with {dev.directory}." in second.stderr
        assert "explain" not in dev.said()
        assert "1 agent is connected" in dev.command("status").stdout
