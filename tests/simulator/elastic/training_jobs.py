"""A real launcher with real workers in a folder of its own, and conditions to wait for."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from simulator.events import EventLog, JobEvent, JobEventKind, read
from simulator.judge import Expectations, ReplayVerdict, judge
from simulator.model import reference
from tests.testkit.waiting import wait_until

DEADLINE = 60.0
STEP_SECONDS = 0.01


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and was not reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


@dataclass
class Folder:
    """Everything of one job: host list, checkpoint, events, pids; the same over its runs."""

    root: Path
    launchers: "list[subprocess.Popen[bytes]]" = field(default_factory=list)

    @property
    def checkpoint(self) -> Path:
        return self.root / "checkpoint"

    @property
    def identity(self) -> Path:
        return self.root / "kubeai"

    def list_hosts(self, hosts: str) -> None:
        """Have the discovery script print one host for every letter from now on."""
        new = self.root / "hosts.new"
        new.write_text("".join(f"{host}:1\n" for host in hosts))
        new.rename(self.root / "hosts")

    def launch(  # noqa: PLR0913 - the knobs of a job, all by name
        self,
        *,
        steps: int,
        least: int = 1,
        start: int | None = None,
        run: int = 1,
        timeout: float = 60.0,
        options: Sequence[str] = (),
        script: Sequence[str] | None = None,
    ) -> "subprocess.Popen[bytes]":
        """Start a launcher on the listed hosts, with the demo job unless another script is named."""
        listed = len((self.root / "hosts").read_text().split())
        job = ("-m", "simulator.job", "--steps", str(steps), "--step-seconds", str(STEP_SECONDS))
        launcher = subprocess.Popen(
            [
                *(sys.executable, "-m", "simulator.elastic.launcher"),
                *("--min-workers", str(least), "--max-workers", "6", "--start-workers", str(start or listed)),
                *("--discovery", f"cat {self.root / 'hosts'}", "--discovery-seconds", "0.05"),
                *("--below-min-timeout", str(timeout), "--", sys.executable),
                *(script or (*job, "--checkpoint", str(self.checkpoint), *options)),
            ],
            env=self._environment(run),
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # As kubeai-run starts it, which signals the whole group.
        )
        self.launchers.append(launcher)
        return launcher

    def run_alone(self, *options: str) -> int:
        command = [sys.executable, "-m", "simulator.job", "--checkpoint", str(self.checkpoint), *options]
        return subprocess.run(command, env=self._environment(1), check=False, timeout=DEADLINE).returncode

    def events(self, *kinds: JobEventKind) -> list[JobEvent]:
        return [event for event in read(self.root / "events") if event.kind in kinds or not kinds]

    def tell_truth(self, event: JobEventKind, **fields: object) -> None:
        """Write what the cloud would write."""
        with EventLog(self.root / "events", f"cloud-{time.monotonic_ns()}") as log:
            log.write(event, **fields)

    def last_step(self) -> int:
        return max((event.integer("step") for event in self.events(JobEventKind.STEP_APPLIED)), default=0)

    def hosts_at(self, step: int) -> set[str]:
        """The hosts that have applied that step."""
        return {event.text("host") for event in self.events(JobEventKind.STEP_APPLIED) if event.integer("step") == step}

    def until_step(self, step: int) -> None:
        wait_until(lambda: self.last_step() >= step, f"step {step}")

    def rings(self) -> list[str]:
        """The rings so far: their hosts, a letter each, in rank order."""
        return ["".join(event.texts("hosts")) for event in self.events(JobEventKind.RING_FORMED)]

    def until_ring(self, hosts: str, step: int = 0) -> None:
        """Wait until a ring of these hosts is the last one and has applied so many steps more."""
        wait_until(lambda: self.rings()[-1:] == [hosts], f"a ring of {hosts}")
        if step:
            self.until_step(self.last_step() + step)

    def pids(self, hosts: str) -> dict[str, list[int]]:
        return {host: sorted(int(file.name) for file in self._node(host)) for host in hosts}

    def kill(self, host: str) -> None:
        """Kill -9 a host's worker."""
        for pid in self.pids(host)[host]:
            os.kill(pid, signal.SIGKILL)

    def verdict(self, steps: int, least: int = 1) -> ReplayVerdict:
        return judge(self.events(), Expectations(steps, reference(steps), least))

    def close(self) -> None:
        for launcher in self.launchers:
            launcher.kill()
            launcher.wait()
        pids = [pid for node in self.root.glob("state/nodes/*") for pid in self.pids(node.name)[node.name]]
        wait_until(lambda: not any(is_alive(pid) for pid in pids), "workers to die with their launcher")

    def _node(self, host: str) -> list[Path]:
        with suppress(FileNotFoundError):
            return list((self.root / "state" / "nodes" / host).iterdir())
        return []

    def _environment(self, run: int) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        return {
            **kept,
            "SIM_EVENTS": str(self.root / "events"),
            "SIM_STATE": str(self.root / "state"),
            "KUBEAI_DIR": str(self.identity),
            "KUBEAI_RUN": str(run),
        }
