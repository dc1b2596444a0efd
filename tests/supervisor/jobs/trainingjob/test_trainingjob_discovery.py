"""The scripts that run in launchers, in every shell that there is here."""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from supervisor.jobs.trainingjob.discovery import DISCOVERY, EXCLUDE

SHELLS = [shell for shell in ("dash", "bash", "busybox") if shutil.which(shell)]
LISTED = "127.0.0.1:1\n127.0.0.2:2\n127.0.0.3:1\n"


@dataclass(frozen=True, slots=True)
class ScriptLauncher:
    shell: str
    edl: Path
    port: int

    def runs(self, command: Sequence[str], **variables: str) -> str:
        environment = {
            "PATH": os.environ["PATH"],
            "EDL": str(self.edl),
            "KUBEAI_DIR": str(self.edl / "mounted"),
            "EDL_PORT": str(self.port),
            "EDL_JOIN_DELAY": "0",
            **variables,
        }
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
        assert (ran.returncode, ran.stderr) == (0, "")
        return ran.stdout

    def hosts(self, **variables: str) -> list[str]:
        shell = ["busybox", "sh"] if self.shell == "busybox" else [self.shell]
        return self.runs([*shell, str(self.edl / "discover_hosts.sh")], **variables).splitlines()

    def lists(self, hosts: str) -> None:
        (self.edl / "hostfile").write_text(hosts, encoding="utf-8")

    def leaves_out(self, *hosts: str) -> None:
        self.runs([*EXCLUDE, *sorted(hosts)])


@contextmanager
def answering(address: str, port: int = 0) -> Iterator[int]:
    with socket.create_server((address, port)) as server:
        yield int(server.getsockname()[1])


@pytest.fixture(params=SHELLS)
def launcher(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ScriptLauncher]:
    """A launcher with our script, three hosts on its list, all of which answer."""
    with answering("127.0.0.1") as port, answering("127.0.0.2", port), answering("127.0.0.3", port):
        one = ScriptLauncher(request.param, tmp_path, port)
        (tmp_path / "discover_hosts.sh").write_text("#!/bin/sh\ncat hostfile\n", encoding="utf-8")
        one.lists(LISTED)
        one.leaves_out()
        yield one


def test_all_hosts_are_listed_until_some_are_left_out(launcher: ScriptLauncher) -> None:
    """By their whole names, with their slots; and they come back when they are not left out any more."""
    assert launcher.hosts() == LISTED.splitlines()
    launcher.leaves_out("127.0.0.2", "127.0.0", "0.0.3")
    assert launcher.hosts() == ["127.0.0.1:1", "127.0.0.3:1"]
    launcher.leaves_out()
    assert launcher.hosts() == LISTED.splitlines()


def test_a_leave_and_a_join_are_two_changes(launcher: ScriptLauncher) -> None:
    """Hosts that leave go at once, hosts that join or come back wait some seconds: Horovod's workers would hang."""
    delay = {"EDL_JOIN_DELAY": "5"}
    assert launcher.hosts(**delay) == LISTED.splitlines()
    launcher.leaves_out("127.0.0.2")
    launcher.lists(f"{LISTED}localhost:1\n")
    assert launcher.hosts(**delay) == ["127.0.0.1:1", "127.0.0.3:1"]
    launcher.leaves_out()
    assert launcher.hosts(**delay) == ["127.0.0.1:1", "127.0.0.3:1"]
    left_at = launcher.edl / "left_at"
    left_at.write_text(f"{int(left_at.read_text(encoding='ascii')) - 6}\n", encoding="ascii")
    assert launcher.hosts(**delay) == [*LISTED.splitlines(), "localhost:1"]


def test_a_clock_that_was_set_back_holds_no_host_back(launcher: ScriptLauncher) -> None:
    delay = {"EDL_JOIN_DELAY": "5"}
    launcher.lists("127.0.0.1:1\n")
    assert launcher.hosts(**delay) == ["127.0.0.1:1"]
    launcher.lists(LISTED)
    (launcher.edl / "left_at").write_text("99999999999\n", encoding="ascii")
    assert launcher.hosts(**delay) == LISTED.splitlines()


def test_what_is_mounted_counts_as_well(launcher: ScriptLauncher) -> None:
    (launcher.edl / "mounted").mkdir()
    (launcher.edl / "mounted" / "excluded-hosts").write_text("127.0.0.1\n", encoding="utf-8")
    assert launcher.hosts() == ["127.0.0.2:2", "127.0.0.3:1"]


def test_a_new_host_is_listed_once_it_answers(launcher: ScriptLauncher) -> None:
    assert launcher.hosts() == LISTED.splitlines()
    launcher.lists(LISTED + "127.0.0.4:1\n")
    assert launcher.hosts() == LISTED.splitlines()
    with answering("127.0.0.4", launcher.port):
        assert launcher.hosts() == [*LISTED.splitlines(), "127.0.0.4:1"]
    assert launcher.hosts() == [*LISTED.splitlines(), "127.0.0.4:1"]


def test_a_host_that_went_and_came_back_has_to_answer_again(launcher: ScriptLauncher) -> None:
    with answering("127.0.0.4", launcher.port):
        launcher.lists(LISTED + "127.0.0.4:1\n")
        assert "127.0.0.4:1" in launcher.hosts()
    launcher.lists(LISTED)
    assert launcher.hosts() == LISTED.splitlines()
    launcher.lists(LISTED + "127.0.0.4:1\n")
    assert launcher.hosts() == LISTED.splitlines()


@pytest.mark.parametrize("damage", ["empty", "gone", "directory"])
def test_what_cannot_be_read_is_what_it_was(launcher: ScriptLauncher, damage: str) -> None:
    assert launcher.hosts() == LISTED.splitlines()
    (launcher.edl / "hostfile").unlink()
    if damage == "empty":
        launcher.lists("")
    if damage == "directory":
        (launcher.edl / "hostfile").mkdir()
    launcher.leaves_out("127.0.0.3")
    assert launcher.hosts() == LISTED.splitlines()[:2]


def test_it_ends_well_where_there_is_nothing_at_all(launcher: ScriptLauncher) -> None:
    (launcher.edl / "hostfile").unlink()
    (launcher.edl / "excluded_hosts").unlink()
    assert launcher.hosts() == []


@pytest.mark.parametrize("tool", ["nc", "python3", "none"])
def test_it_asks_hosts_with_what_the_image_has(launcher: ScriptLauncher, tmp_path: Path, tool: str) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    found = {name: shutil.which(name) for name in ("mv", "sh", "cat", "nc")}
    found["python3"] = str(Path(sys.executable).resolve())
    for program in ("mv", "sh", "cat", tool):
        if (path := found.get(program)) is not None:
            (programs / program).symlink_to(path)
    shell = shutil.which(launcher.shell)
    assert shell is not None
    sh = [shell, *(["sh"] if launcher.shell == "busybox" else [])]
    has_nc = bool(launcher.runs([*sh, "-c", "command -v nc || true"], PATH=str(programs)))  # busybox may be one itself.
    if tool == "nc" and not has_nc:
        pytest.skip("there is no nc here")
    assert launcher.hosts() == LISTED.splitlines()
    launcher.lists(LISTED + "127.0.0.4:1\n")
    unreachable = [] if tool == "python3" or has_nc else ["127.0.0.4:1"]
    command = [*sh, str(tmp_path / "discover_hosts.sh")]
    assert launcher.runs(command, PATH=str(programs)).splitlines() == [*LISTED.splitlines(), *unreachable]


def test_the_first_list_is_taken_as_it_is(launcher: ScriptLauncher) -> None:
    """It may be in use already, and nobody knows yet whether the hosts' port is the usual one."""
    assert launcher.hosts(EDL_PORT="1") == LISTED.splitlines()
    launcher.leaves_out("127.0.0.2")
    assert launcher.hosts(EDL_PORT="1") == ["127.0.0.1:1", "127.0.0.3:1"]


def test_hosts_are_not_asked_where_that_is_not_wanted(launcher: ScriptLauncher) -> None:
    """Port 0."""
    assert launcher.hosts() == LISTED.splitlines()
    launcher.lists(LISTED + "127.0.0.4:1\n")
    assert launcher.hosts(EDL_PORT="0") == [*LISTED.splitlines(), "127.0.0.4:1"]


def test_hundreds_of_hosts_are_a_matter_of_a_moment(launcher: ScriptLauncher) -> None:
    many = "".join(f"bert-worker-{number}.team:8\n" for number in range(2000))
    launcher.lists(many)
    assert launcher.hosts(EDL_PORT="0") == many.splitlines()
    launcher.leaves_out(*(f"bert-worker-{number}.team" for number in range(0, 2000, 2)))
    assert launcher.hosts(EDL_PORT="0") == many.splitlines()[1::2]


def test_the_script_is_written_once_and_the_list_each_time(launcher: ScriptLauncher) -> None:
    script = launcher.edl / "discover_hosts.sh"
    assert script.read_text(encoding="utf-8") == DISCOVERY
    before, before_list = script.stat().st_ino, (launcher.edl / "excluded_hosts").stat().st_ino
    launcher.leaves_out("127.0.0.2")
    assert script.stat().st_ino == before
    assert (launcher.edl / "excluded_hosts").stat().st_ino != before_list
    assert os.access(script, os.X_OK)
    assert sorted(path.name for path in launcher.edl.iterdir()) == ["discover_hosts.sh", "excluded_hosts", "hostfile"]


def test_a_launcher_that_cannot_be_written_to_says_so(tmp_path: Path) -> None:
    ran = subprocess.run([*EXCLUDE, "a"], env={"EDL": str(tmp_path / "nothing")}, capture_output=True, check=False)
    assert ran.returncode != 0
