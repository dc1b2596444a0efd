"""The agents of torchrun and their workers as processes of this machine, which plays all hosts."""

import os
import signal
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from simulator.cloud.process import MARK, end, leftovers

CHECKOUT = Path(__file__).parents[2]
_RESTART, _IN_PROCESS, _TRAINER = (
    Path(__file__).with_name(f"torchrun_{name}.py") for name in ("training", "in_process", "trainer")
)
PROCESSES = int(os.environ.get("TORCHRUN_PROCESSES", "2"))
"""Workers of each host."""
BACKEND = os.environ.get("TORCHRUN_BACKEND", "gloo")
"""`gloo`, or `nccl` on a machine with GPUs."""


@dataclass(frozen=True, slots=True)
class Torch:
    """A version of torch: its number and the environment that has it."""

    version: str
    home: Path


@dataclass(frozen=True, slots=True)
class TorchrunTraining:
    """The configuration of a training: version of torch, wrapping, and the paths of records and checkpoints.

    Attributes:
        torch: The version.
        directory: Where the script writes; it exists.
        wrapping: `ddp`, `fsdp`, or `trainer` for a Trainer of Transformers; in process also `copies` or `own`.
        in_process: Processes go on in the next round, instead of being restarted.
        step_seconds: The time that a step takes at least.
        warm: Workers are started by kubeai-python.
    """

    torch: Torch
    directory: Path
    wrapping: str = "ddp"
    in_process: bool = False
    step_seconds: float = 0.05
    warm: bool = False

    def torchrun(self, *options: str) -> list[str]:
        """The command of one host."""
        program = [str(self.torch.home / "bin" / "python"), "-m", "torch.distributed.run"]
        count = ("--nproc-per-node", str(PROCESSES), "--max-restarts", "9", "--local-addr", "127.0.0.1")
        return [*program, *count, *options, str(self._script), self.wrapping, str(self.directory)]

    def alone(self) -> list[str]:
        """The command of a single process."""
        return [str(self.torch.home / "bin" / "python"), str(self._script), self.wrapping, str(self.directory)]

    @property
    def _script(self) -> Path:
        if self.in_process:
            return _IN_PROCESS
        return _TRAINER if self.wrapping == "trainer" else _RESTART

    def environment(self) -> dict[str, str]:
        gpus = {} if BACKEND == "nccl" else {"CUDA_VISIBLE_DEVICES": ""}
        warm = {"PYTHON_EXEC": str(self._warm_python())} if self.warm else {}
        return {
            **gpus,
            **warm,
            "PYTHONPATH": os.pathsep.join([str(CHECKOUT / "sdk"), str(self._installed()), str(CHECKOUT)]),
            "OMP_NUM_THREADS": "1",
            "TORCHRUN_BACKEND": BACKEND,
            "TORCHRUN_STEP_SECONDS": str(self.step_seconds),
        }

    def _warm_python(self) -> Path:
        """Make what pip would write of the SDK's command kubeai-python; returns where."""
        made = self.directory / "kubeai-python"
        made.write_text(f"#!{self.torch.home / 'bin' / 'python'}\nfrom kubeai.warm.python import main\nmain()\n")
        made.chmod(0o755)
        return made

    def _installed(self) -> Path:
        """Make what pip would write of the SDK's entry points, by which torch finds the backend; returns where."""
        project = tomllib.loads((CHECKOUT / "sdk" / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        made = self.directory / "installed"
        information = made / "kubeai_elastic-0.dist-info"
        information.mkdir(parents=True, exist_ok=True)
        handlers = project.get("entry-points", {}).get("torchrun.handlers", {})
        lines = ["[torchrun.handlers]", *(f"{name} = {place}" for name, place in handlers.items())]
        (information / "entry_points.txt").write_text("\n".join(lines), encoding="utf-8")
        (information / "METADATA").write_text("Metadata-Version: 2.1\nName: kubeai-elastic\nVersion: 0\n", "utf-8")
        return made


@dataclass(frozen=True, slots=True)
class Resources:
    """The descriptors and threads of a process, and its resident memory in KiB."""

    descriptors: int
    threads: int
    memory: int

    @classmethod
    def of(cls, pid: int) -> "Resources":
        status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text("ascii").splitlines())
        memory, _, _ = status["VmRSS"].strip().partition(" ")
        return cls(len(list(Path(f"/proc/{pid}/fd").iterdir())), int(status["Threads"]), int(memory))

    def within(self, before: "Resources", *, mebibytes: int) -> bool:
        """Whether these are not more than before, memory apart, of which there may be so many MiB more."""
        grown = self.memory - before.memory
        return self.descriptors <= before.descriptors and self.threads <= before.threads and grown <= mebibytes * 1024


def alone_environment() -> dict[str, str]:
    """The variables that make a single process the only rank of a world."""
    return {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}


def agents(root: Path, host: str) -> list[int]:
    """The elastic agents on a host."""
    return [pid for pid, variables in _on(root, host) if "LOCAL_RANK" not in variables and _is_torchrun(pid)]


def workers(root: Path, host: str) -> list[int]:
    """The training processes on a host."""
    return [pid for pid, variables in _on(root, host) if "LOCAL_RANK" in variables]


def everything(root: Path, host: str) -> list[int]:
    """All that the job has on a host."""
    return [pid for pid, _ in _on(root, host)]


def send(pids: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to processes, those that are gone already left out."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def killed(root: Path) -> bool:
    """Kill what is left of a test; returns whether there was anything."""
    left = leftovers(root)
    for one in left:
        end(one.pid, root)
    return bool(left)


def _on(root: Path, host: str) -> Iterator[tuple[int, Mapping[str, str]]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            variables = _variables(entry / "environ")
            if variables.get(MARK) == str(root) and variables.get("KUBEAI_HOST") == host:
                yield int(entry.name), variables


def _is_torchrun(pid: int) -> bool:
    with suppress(OSError):
        return b"torch.distributed.run" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return False


def _variables(environ: Path) -> dict[str, str]:
    with suppress(OSError):
        pairs = (pair.partition("=") for pair in environ.read_text(errors="replace").split("\0"))
        return {name: value for name, _, value in pairs}
    return {}
