"""Plays the elastic agents of a job that uses kubeai.torch: starts its processes, and writes the rounds they enter.

with Rounds(frameworks, tmp_path, "exact", steps=60) as rounds:
    rounds.start("a", "b")
    rounds.form("a", "b")
    rounds.regroup("a")
    rounds.finish("a")
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from tests.frameworks.frameworks_losses import numbers

_CHECKOUT = Path(__file__).parents[2]
_STORES = Path(__file__).with_name("frameworks_store.py")
DEVICE = os.environ.get("FRAMEWORKS_DEVICE", "cpu")
"""What the processes train on: `cpu`, or `cuda`, of which they share the first one."""
BACKEND = os.environ.get("FRAMEWORKS_BACKEND", "gloo")
_WITHOUT_GPU = {"CUDA_VISIBLE_DEVICES": ""}
_NCCL_ON_ONE_GPU = {
    # NCCL refuses two ranks of one host on one GPU. Each has a host of its own (NCCL_HOSTID), and they use sockets.
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_IB_DISABLE": "1",
    "NCCL_MNNVL_ENABLE": "0",
    # As docs/guide/in-process.md asks for.
    "TORCH_NCCL_BLOCKING_WAIT": "1",
}
_WARM = "-c", "from kubeai.warm.python import main; main()"
_AHEAD = 4
"""Steps to the next pause."""
SECONDS = float(os.environ.get("FRAMEWORKS_SECONDS", "240"))

STEP_SECONDS = float(os.environ.get("FRAMEWORKS_STEP_SECONDS", "0.05"))
"""Others have to be there before a training ends, and a start of torch takes 2 s, or 10 with a GPU."""


@dataclass
class Rounds:
    """One job. Each member is one process, and its name is that of its directory.

    Attributes:
        home: The environment that has torch.
        root: What the processes share.
        kind: What they train.
        steps: How many steps.
        step_seconds: The shortest time for one.
        script: Of this folder, or a whole path. It takes these and a name.
        variables: Further variables of the environment of all processes.
        variables_of: Those of each member.
        warm: Processes are forks of one that has imported torch, for tests that start many.
    """

    home: Path
    root: Path
    kind: str
    steps: int
    step_seconds: float = STEP_SECONDS
    script: str = "frameworks_elastic.py"
    variables: Mapping[str, str] = field(default_factory=dict)
    variables_of: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    warm: bool = False
    number: int = 0
    members: tuple[str, ...] = ()
    _processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    _leaving: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    _stores: subprocess.Popen[str] | None = None
    _templates: str = ""
    _epoch: int = 0
    _foretold: dict[str, int] = field(default_factory=dict)

    def __enter__(self) -> Self:
        self.root.mkdir(parents=True, exist_ok=True)
        self._templates = tempfile.mkdtemp(prefix="kubeai-")  # the path of a socket has to be short
        pipe = subprocess.PIPE
        command = [self._python, str(_STORES), *([self._script] if self.warm else [])]
        self._stores = subprocess.Popen(command, text=True, env=self._environment(), stdin=pipe, stdout=pipe)
        return self

    def __exit__(self, *_: object) -> None:
        self._processes |= self._leaving
        for name in list(self._processes):
            self.kill(name)
        if self._stores is not None:
            self._stores.kill()
            self._stores.communicate()
        shutil.rmtree(self._templates)
        for path in self.root.glob("frozen-*"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(path.name.rpartition("-")[2]), signal.SIGKILL)

    def start(self, *names: str, joins: bool = False) -> None:
        """Start a process for each member: in the next round, or to join a later one."""
        for name in names:
            (self.root / name).mkdir(exist_ok=True)
            (self.root / name / "worker-0.json").unlink(missing_ok=True)
        if not joins:
            self._write_round(names, in_process=False)
        starting = self.root / "starting"
        if joins:
            starting.touch()
        for name in names:
            directory = {"KUBEAI_RENDEZVOUS_DIR": str(self.root / name), "KUBEAI_RENDEZVOUS_ROUND": str(self.number)}
            self._spawn(name, {**directory, "LOCAL_RANK": "0", **({"KUBEAI_RENDEZVOUS_JOINS": "1"} if joins else {})})
        if joins:
            self.until(lambda: all(self._said(name).get("started") for name in names), "started")
            starting.unlink()

    def run_alone(self) -> list[dict[str, Any]]:
        """Train with one process, without rounds, as the reference; returns what it has recorded."""
        place = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": self._port()}
        # As of torchrun. The oldest torch reads the second, too.
        launcher = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}
        self._spawn("alone", {**place, **launcher})
        self.finish("alone")
        return self.recorded("alone")

    def run_plainly(self) -> None:
        """Train with one process that no launcher has started, as the reference."""
        self._spawn("alone", {})
        self.finish("alone")

    def run_torchrun(self, agents: str, processes: int) -> None:
        """Train to the end with processes that elastic agents of torchrun start, and start anew, in rounds of torch.

        Args:
            agents: For each its name, a letter, which is that of its first process.
            processes: Of each.
        """
        endpoint = f"127.0.0.1:{_free_port()}"
        for place, name in enumerate(agents):
            options = {
                "nnodes": len(agents),
                "nproc-per-node": processes,
                "max-restarts": 5,
                "rdzv-backend": "c10d",
                "rdzv-endpoint": endpoint,
                "rdzv-conf": f"is_host={int(place == 0)}",
                "rdzv-id": "kept",
                "local-addr": "127.0.0.1",
            }
            self._spawn(
                name, {}, ["-m", "torch.distributed.run", *(f"--{key}={each}" for key, each in options.items())]
            )
        self.finish(*agents)

    def form(self, *names: str) -> None:
        """Write the next round, which the processes enter without a restart, and wait until all train in it."""
        self._write_round(names, in_process=True)
        self.until_ready()

    def until_ready(self) -> None:
        self.until(lambda: all(self._said(name).get("round") == self.number for name in self.members), "ready")

    def until_lost(self, *names: str) -> None:
        """Wait until these processes have said that they have lost another rank."""
        self.until(lambda: all(self._said(name).get("lost") for name in names), "without a rank")

    def regroup(self, *names: str) -> int:
        """Let all ranks pause at one step; then form the next round, and end those that are no part of it.

        Returns the step.
        """
        step = self.agree_soon()
        self.regroup_at(step, *names)
        return step

    def agree_soon(self) -> int:
        """Let all ranks pause at a step that none of them has reached; returns it."""
        step = max(self.step_of(name) for name in self.members) + _AHEAD
        self.agree(step)
        return step

    def agree(self, *steps: int) -> None:
        """Let all ranks pause at these steps."""
        draft = self.root / "agreed-draft"
        draft.write_text(" ".join(map(str, steps)), encoding="ascii")
        draft.replace(self.root / "agreed")

    def regroup_at(self, step: int, *names: str) -> None:
        """Form the next round when all ranks pause at an agreed step, and end those that are no part of it."""
        self.until_holding(step)
        left = self.announce(*names)
        self.until_ready()
        for name in left:
            assert self._leaving.pop(name).wait(SECONDS) == -signal.SIGTERM, self._tail(name)

    def four_three_four(self, leave: int, join: int, last: str = "acde") -> None:
        """Train with four ranks; the second one leaves at a step, and another one joins at a later one.

        Args:
            leave: The one step.
            join: The other one.
            last: The ranks of the last round in their order.
        """
        self.agree(leave, join)
        self.start("e", joins=True)
        self.start("a", "b", "c", "d")
        self.regroup_at(leave, "a", "c", "d")
        self.regroup_at(join, *last)
        self.finish(*last)

    def go_on_without(self, dead: str, left: str) -> None:
        """Wait until ranks are dead and the others know it, and let these form the next round."""
        self.until_dead(*dead)
        self.until_lost(*left)
        self.form(*left)

    def announce(self, *names: str, terminates: bool = True) -> list[str]:
        """Write the next round, and end those that are no part of it; returns their names.

        As their elastic agents do, it ends them as soon as the round is decided, when some may still be needed.
        """
        left = [name for name in self.members if name not in names and name in self._processes]
        self.let_go(*left)
        self._write_round(names, in_process=True)
        if terminates:
            for name in left:
                self._leaving[name].terminate()
        return left

    def let_go(self, *names: str) -> None:
        """Let these processes end from now on, in any way."""
        self._leaving |= {name: self._processes.pop(name) for name in names}

    def until_struck(self, name: str) -> None:
        """Wait until a process that was let go has ended, or has recorded `struck` and is frozen."""
        process = self._leaving[name]

        def is_frozen() -> bool:
            # A thread that sends the signal to its own process may record some points more before all of it stops.
            return any(_is_frozen(line["pid"]) for line in self.recorded(name) if line["event"] == "struck")

        self.until(lambda: process.poll() is not None or is_frozen(), f"struck: {name}")

    def until_settled(self, has_answered: Callable[[str], bool], *names: str) -> None:
        """Wait until each of these processes, which were let go, has ended, has lost another rank, or has answered."""

        def is_settled(name: str) -> bool:
            return self._leaving[name].poll() is not None or bool(self._said(name).get("lost")) or has_answered(name)

        self.until(lambda: all(map(is_settled, names)), "settled")

    def bury(self, name: str, *, waits: bool = False) -> int:
        """End a process that was let go, if it has not ended, or wait until it has; returns its exit status."""
        process = self._leaving.pop(name)
        if not waits and process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        return process.wait(SECONDS)

    def until_holding(self, step: int) -> None:
        """Wait until all ranks pause at a step."""
        holding = [self.root / f"holding-{step}-{name}" for name in self.members]
        self.until(lambda: all(path.exists() for path in holding), f"holding at {step}")

    def terminate(self, *names: str) -> None:
        """End processes as their elastic agents would for new ones, and wait until they have ended."""
        for name in names:
            self.send(name, signal.SIGTERM)
        for name in names:
            assert self._processes.pop(name).wait(SECONDS) == -signal.SIGTERM

    def send(self, name: str, number: signal.Signals) -> None:
        self._processes[name].send_signal(number)

    def kill(self, name: str) -> None:
        """Kill a process and those that it has started, such as workers of a loader."""
        process = self._processes.pop(name)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()

    def let_die(self, name: str, place: str) -> None:
        """Let a process kill itself when it comes to a place of its script, and wait until it has."""
        (self.root / f"dies-at-{place}-{name}").touch()
        self.until_dead(name)

    def until_dead(self, *names: str, status: int = -signal.SIGKILL) -> None:
        """Wait until these processes have ended with this status: by default, they have killed themselves."""
        for name in names:
            assert self._processes.pop(name).wait(SECONDS) == status, self._tail(name)

    def break_off(self, name: str, what: str) -> tuple[float, str]:
        """Let a process make a mistake; returns how long it lived on (seconds) and its output."""
        began = time.monotonic()
        (self.root / f"{what}-fails-{name}").touch()
        assert self._processes.pop(name).wait(SECONDS) not in (0, None)
        return time.monotonic() - began, self.output(name)

    def finish(self, *names: str) -> None:
        """Wait until these processes have trained to the end."""
        for name in names:
            assert self._processes[name].wait(SECONDS) == 0, self._tail(name)

    def recorded(self, name: str) -> list[dict[str, Any]]:
        path = self.root / f"steps-{name}.jsonl"
        text = path.read_text(encoding="ascii") if path.exists() else ""
        return [json.loads(line) for line in text.rpartition("\n")[0].splitlines()]

    def losses(self, name: str) -> list[tuple[int, str]]:
        """Return each step that a process has finished, and its loss."""
        return [(line["step"], line["loss"]) for line in self.recorded(name) if line["event"] == "end"]

    def output(self, name: str) -> str:
        """Return what a process has printed."""
        return (self.root / f"output-{name}").read_text(encoding="utf-8", errors="replace")

    def step_of(self, name: str) -> int:
        return max((line["step"] for line in self.recorded(name) if "step" in line), default=-1)

    def until_step(self, step: int) -> None:
        self.until(lambda: all(self.step_of(name) >= step for name in self.members), f"at step {step}")

    def parameters(self, name: str) -> dict[str, list[float]]:
        found: dict[str, list[str]] = self.recorded(name)[-1]["parameters"]
        return {key: numbers(values) for key, values in found.items()}

    @property
    def _script(self) -> str:
        return str(Path(__file__).parent / self.script)

    @property
    def _python(self) -> str:
        return str(self.home / "bin" / "python")

    def _environment(self) -> dict[str, str]:
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("KUBEAI_")}
        quiet = {"OMP_NUM_THREADS": "1", "KUBEAI_DIR": os.devnull, **({} if DEVICE == "cuda" else _WITHOUT_GPU)}
        path = os.pathsep.join([str(_CHECKOUT / "sdk"), str(_CHECKOUT)])
        return {**inherited, **quiet, "PYTHONPATH": path, "KUBEAI_WARM_DIR": self._templates, **self.variables}

    def _spawn(self, name: str, variables: dict[str, str], launcher: Sequence[str] = ()) -> None:
        script = [
            *(_WARM if self.warm else ()),
            *launcher,
            self._script,
            self.kind,
            str(self.root),
            str(self.steps),
            str(self.step_seconds),
            name,
        ]
        nccl = {**_NCCL_ON_ONE_GPU, "NCCL_HOSTID": name} if BACKEND == "nccl" else {}
        with (self.root / f"output-{name}").open("ab") as output:
            self._processes[name] = subprocess.Popen(
                [self._python, *script],
                stdout=output,
                stderr=output,
                env={**self._environment(), **nccl, **self.variables_of.get(name, {}), **variables},
                start_new_session=True,
            )

    def foretell(self, *names: str, waits: bool = True) -> None:
        """Write that the next round may have these members; wait until they are connected for it."""
        self._epoch += 1
        port = self._foretold.get(names[0]) or int(self._port())
        self._foretold = {names[0]: port}
        self._write(names, "following.json", {**_round(self.number + 1, names, port), "epoch": self._epoch})
        if waits:
            store = self.root / f"early-{self.number + 1}-{self._epoch}"
            self.until(lambda: all(store.with_name(f"{store.name}-{name}").exists() for name in names), "connected")

    def _write_round(self, names: tuple[str, ...], *, in_process: bool) -> None:
        self.number += 1
        self.members = names
        port = self._foretold.get(names[0]) or int(self._port())
        self._foretold = {}
        self._write(names, "round.json", {**_round(self.number, names, port), "in_process": in_process})

    def _write(self, names: Sequence[str], file: str, content: Mapping[str, Any]) -> None:
        for rank, name in enumerate(names):
            draft = self.root / name / "draft"
            draft.write_text(json.dumps({**content, "node": rank, "base_rank": rank}))
            draft.replace(self.root / name / file)

    def _port(self) -> str:
        assert self._stores is not None
        assert self._stores.stdin is not None
        assert self._stores.stdout is not None
        self._stores.stdin.write("\n")
        self._stores.stdin.flush()
        return self._stores.stdout.readline().strip()

    def _said(self, name: str) -> dict[str, Any]:
        with contextlib.suppress(OSError, ValueError):
            said: dict[str, Any] = json.loads((self.root / name / "worker-0.json").read_text(encoding="utf-8"))
            return said
        return {}

    def until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait until something holds; fail if a process ends meanwhile that was not let go."""
        end = time.monotonic() + SECONDS
        while not holds():
            for name, process in self._processes.items():
                assert process.poll() in (None, 0), self._tail(name)
            assert time.monotonic() < end, f"not {what}: " + "\n".join(self._tail(name) for name in self._processes)
            time.sleep(0.01)

    def _tail(self, name: str) -> str:
        return f"{name}: {self.output(name)[-2000:]}"


def _round(number: int, names: Sequence[str], port: int) -> dict[str, Any]:
    return {
        "number": number,
        "in_process": True,
        "world_size": len(names),
        "members": [{"host": each, "address": each, "processes": 1} for each in names],
        "store": {"address": "127.0.0.1", "port": port},
    }


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def _is_frozen(process: int) -> bool:
    """Return whether SIGSTOP has stopped a process."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] == "T"
    return False


def used(lines: list[list[dict[str, Any]]]) -> Iterator[tuple[int, list[int]]]:
    """Each step with the samples that all ranks together have used in it, as far as the step was finished."""
    ended: dict[int, int] = {}
    for line in (line for each in lines for line in each if line["event"] == "end"):
        ended[line["step"]] = line["world"]
    for step, world in sorted(ended.items()):
        attempts = [line for each in lines for line in each if line.get("step") == step and line["world"] == world]
        yield step, sorted(index for line in attempts if line["event"] == "begin" for index in line["indices"])
