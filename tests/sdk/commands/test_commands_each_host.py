"""kubeai-each-host as a process, with hosts that are this machine under other names."""

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.sdk.commands.commands_harness import STRICT
from tests.testkit.waiting import wait_until

_EACH_HOST = "import sys; from kubeai.elastic.commands.each_host import main; sys.exit(main())"
_SECONDS = 60.0
# Each command says on which host it runs, and ends as soon as there is a file with its exit code.
_COMMAND = """
echo "$KUBEAI_HOST" >> started
while [ ! -e "end-$KUBEAI_HOST" ]; do sleep 0.02; done
exit "$(cat "end-$KUBEAI_HOST")"
"""
# Stands in for ssh: the host's name becomes an argument, and its shell runs the line in an environment of its own.
_SSH = """#!/bin/sh
echo "$1" >> reached
exec env -i PATH="$PATH" sh -c "$2"
"""


@dataclass
class EachHostProcess:
    place: Path
    process: subprocess.Popen[bytes] | None = None

    def start(self, *options: str, command: tuple[str, ...] = ("sh", "-c", _COMMAND), **environ: str) -> None:
        variables: Mapping[str, str] = {**os.environ, "KUBEAI_DIR": str(self.place), **environ}
        with self.said.open("wb") as output:
            self.process = subprocess.Popen(
                [*STRICT, _EACH_HOST, *options, "--", *command], stderr=output, env=dict(variables), cwd=self.place
            )

    @property
    def said(self) -> Path:
        return self.place / "said"

    def give(self, hosts: str, excluded: str = "") -> None:
        """Write both lists as kubeai-run does, whole."""
        for name, text in (("exclusions", excluded), ("hosts", hosts)):
            draft = self.place / f"{name}.draft"
            draft.write_text("".join(f"{host}\n" for host in text.split()), encoding="utf-8")
            draft.replace(self.place / name)

    def end_on(self, host: str, code: int) -> None:
        draft = self.place / f"draft-{host}"
        draft.write_text(str(code), encoding="utf-8")
        draft.replace(self.place / f"end-{host}")

    def started(self) -> list[str]:
        path = self.place / "started"
        return path.read_text(encoding="utf-8").split() if path.exists() else []

    def until_started(self, *hosts: str) -> None:
        wait_until(lambda: sorted(self.started()) == sorted(hosts), self.said.read_text, seconds=_SECONDS)

    def until_said(self, text: str) -> None:
        wait_until(lambda: text in self.said.read_text(), self.said.read_text, seconds=_SECONDS)

    def wait(self) -> int:
        assert self.process is not None
        return self.process.wait(_SECONDS)

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)


@pytest.fixture
def each_host(tmp_path: Path) -> Iterator[EachHostProcess]:
    one = EachHostProcess(tmp_path)
    one.give("a b")
    yield one
    if one.process is not None:
        one.process.kill()
        one.process.wait(_SECONDS)


def test_it_ends_with_zero_when_the_command_has_on_all_hosts(each_host: EachHostProcess) -> None:
    each_host.start("--local")
    each_host.until_started("a", "b")
    each_host.end_on("a", 0)
    each_host.until_said("on a ended with 0")
    each_host.end_on("b", 0)
    assert each_host.wait() == 0


def test_it_starts_on_a_new_host_and_ends_on_one_that_is_gone(each_host: EachHostProcess) -> None:
    each_host.start("--local")
    each_host.until_started("a", "b")
    each_host.give("a c")
    each_host.until_started("a", "b", "c")
    each_host.until_said(f"on b ended with {-signal.SIGTERM}")


def test_it_starts_again_on_a_host_that_returns_as_a_new_machine(each_host: EachHostProcess) -> None:
    each_host.start("--local", "--restarts", "0")
    each_host.until_started("a", "b")
    each_host.give("a b", excluded="b")
    each_host.end_on("b", 255)
    each_host.until_said("on b ended with 255")
    (each_host.place / "end-b").unlink()
    each_host.give("a b")
    each_host.until_started("a", "b", "b")


def test_it_passes_on_the_code_of_a_command_that_fails_too_often(each_host: EachHostProcess) -> None:
    each_host.give("a")
    each_host.end_on("a", 3)
    each_host.start("--local", "--restarts", "1")
    assert each_host.wait() == 3
    assert each_host.started() == ["a", "a"]


def test_a_signal_ends_all_commands(each_host: EachHostProcess) -> None:
    each_host.start("--local")
    each_host.until_started("a", "b")
    each_host.signal(signal.SIGTERM)
    assert each_host.wait() == 128 + signal.SIGTERM


def test_a_command_that_ignores_sigterm_is_killed(each_host: EachHostProcess) -> None:
    each_host.start("--local", "--stop-grace", "0.2", command=("sh", "-c", f"trap '' TERM; {_COMMAND}"))
    each_host.until_started("a", "b")
    each_host.signal(signal.SIGTERM)
    assert each_host.wait() == 128 + signal.SIGTERM


def test_a_remote_command_has_our_variables_and_the_named_ones(each_host: EachHostProcess) -> None:
    """Its directory is the one it was started in, and nothing of a word is lost on the way through a shell."""
    ssh = each_host.place / "ssh"
    ssh.write_text(_SSH, encoding="utf-8")
    ssh.chmod(0o700)
    show = ("sh", "-c", 'echo "$KUBEAI_RUN|$MINE|$OTHER|$1" > "seen-$KUBEAI_HOST"', "sh", "two  'words'")
    each_host.start("--ssh", str(ssh), "-x", "MINE", command=show, KUBEAI_RUN="7", MINE="a $b", OTHER="no")
    assert each_host.wait() == 0, each_host.said.read_text()
    assert sorted((each_host.place / "reached").read_text().split()) == ["a", "b"]
    assert (each_host.place / "seen-a").read_text() == "7|a $b||two  'words'\n"


@pytest.mark.parametrize(
    ("options", "command", "said"),
    [
        ((), (), "the command is missing"),
        (("--local",), ("no-such-command",), "was not found"),
        (("--restarts", "-1"), ("true",), "is not a whole number"),
        (("--stop-grace", "nan"), ("true",), "is not a number of seconds"),
    ],
)
def test_wrong_arguments_are_explained(
    each_host: EachHostProcess, options: tuple[str, ...], command: tuple[str, ...], said: str
) -> None:
    each_host.start(*options, command=command)
    assert each_host.wait() == 64
    assert said in each_host.said.read_text()


def test_it_says_where_it_belongs(each_host: EachHostProcess) -> None:
    """Without kubeai-run there is no list of hosts."""
    each_host.start(KUBEAI_DIR="")
    assert each_host.wait() == 78
    assert "kubeai-run" in each_host.said.read_text()
