"""Real kubeai-run and kubeai-discover-hosts processes under test."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kubeai.elastic.testing import FakeSupervisor

from tests.testkit.waiting import wait_until

RUN = "import sys; from kubeai.elastic.commands.run import main; sys.exit(main())"
DISCOVER = "import sys; from kubeai.elastic.commands.discover_hosts import main; sys.exit(main())"
STRICT = (sys.executable, "-X", "dev", "-W", "error", "-c")
FOR_EVER = ("sh", "-c", "echo up; exec sleep 60")


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


@dataclass(frozen=True)
class Launched:
    process: subprocess.Popen[bytes]
    supervisor: FakeSupervisor
    directory: Path
    hosts: Path
    said: Path

    def end(self, seconds: float = 30.0) -> int:
        return self.process.wait(seconds)

    def output(self) -> str:
        """The stdout and stderr of kubeai-run and its command."""
        return self.said.read_text(encoding="utf-8")

    def wait_for_output(self, text: str, count: int = 1) -> None:
        wait_until(lambda: self.output().count(text) >= count, lambda: f"{text!r} in {self.output()}")

    def reports(self) -> list[dict[str, Any]]:
        hellos = [hello.body["report"] for hello in self.supervisor.hellos]
        return sorted([*hellos, *(report.body for report in self.supervisor.reports)], key=lambda one: one["revision"])

    def wait_for_report(self, **fields: object) -> None:
        wait_until(
            lambda: any(fields.items() <= report.items() for report in self.reports()),
            lambda: f"{fields} in {self.reports()}; {self.output()}",
        )

    def file(self, name: str) -> str:
        return (self.directory / name).read_text(encoding="utf-8")

    def clean_up(self) -> None:
        """End it if it has not ended; it must not have stumbled over anything of its own."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait(30)
        for mishap in ("Traceback", "Exception ignored", "Warning"):
            assert mishap not in self.output(), self.output()


@dataclass(frozen=True)
class Launchpad:
    place: Path
    supervisor: FakeSupervisor
    launched: list[Launched]

    def start(
        self,
        *command: str,
        options: tuple[str, ...] = (),
        environ: Mapping[str, str] | None = None,
        job: str = "job",
        before: tuple[str, ...] = (),
        program: str = RUN,
    ) -> Launched:
        """Start it for two hosts, with short times, by a command ``before`` it where that matters."""
        directory, hosts, token = self.place / f"id-{len(self.launched)}", self.place / "hosts", self.place / "token"
        if not hosts.exists():
            hosts.write_text("a:1\nb:1\n", encoding="utf-8")
        token.write_text(FakeSupervisor.launcher_token + "\n", encoding="utf-8")
        said = self.place / f"said-{len(self.launched)}"
        arguments = [
            *("--job", job, "--max-workers", "2", "--supervisor", self.supervisor.address),
            *("--token-file", str(token), "--hosts-file", str(hosts), "--port", "0"),
            *("--directory", str(directory), "--back-off", "0.05", "--offline-grace", "1", "--stop-grace", "2"),
            # Nobody who would save is asked by a supervisor that only says what its test tells it to.
            *("--save-grace", "0"),
        ]
        with said.open("wb") as output:
            process = subprocess.Popen(
                [*before, *STRICT, program, *arguments, *options, "--", *command],
                stdout=output,
                stderr=output,
                env={**os.environ, **(environ or {})},
            )
        launched = Launched(process, self.supervisor, directory, hosts, said)
        self.launched.append(launched)
        return launched

    def clean_up(self) -> None:
        for launched in self.launched:
            launched.clean_up()


def discover(directory: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*STRICT, DISCOVER, *arguments],
        env={
            **os.environ,
            "KUBEAI_DIR": str(directory),
            "KUBEAI_HOSTS_PORT": "0",
            "KUBEAI_JOIN_DELAY": "0",
            **environ,
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def kill_now(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def in_run(first: str, others: str = "exit 0") -> tuple[str, ...]:
    """A command that does one thing in run 1 and another in later runs."""
    return "sh", "-c", f'echo up $KUBEAI_RUN; if [ "$KUBEAI_RUN" = 1 ]; then {first}; else {others}; fi'


def order_stop(supervisor: FakeSupervisor) -> None:
    """A STOP was decided for run 1."""
    supervisor.order(order="run", run=1, stopping=True, phase="Stopping")


def suspend(supervisor: FakeSupervisor) -> None:
    """Run 1 is over and nothing should run."""
    supervisor.order(order="wait", run=1, phase="Suspended")


def resume(supervisor: FakeSupervisor, run: int = 2) -> None:
    supervisor.order(order="run", run=run, workers=1, phase="Resuming")


def until_registered(launched: Launched) -> None:
    launched.wait_for_report(running=True)


def command_of(launched: Launched) -> int:
    children = Path(f"/proc/{launched.process.pid}/task/{launched.process.pid}/children")
    return int(children.read_text(encoding="ascii").split()[0])
