"""Programs of the torch of another Python, and what they have open of a GPU."""

import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.sdk.sdk_scripts import SDK
from tests.sdk.warm.warm_programs import WarmPrograms
from tests.testkit.torches import ForeignTorch

DEVICE = os.environ.get("GPU_DEVICE", "cuda")

_COMMAND = "from kubeai.warm.python import main\nmain()\n"
_QUIET = {"OMP_NUM_THREADS": "1", "CUBLAS_WORKSPACE_CONFIG": ":4096:8", "TRAIN_DEVICE": DEVICE, "PYTHONUNBUFFERED": "1"}


def programs_of(torch: ForeignTorch, root: Path, templates: Path) -> WarmPrograms:
    """Programs that have this torch, and packages of their own in the user's directory of packages."""
    home, scripts = root / "home", root / "scripts"
    packages = home / "lib" / f"python{torch.python}" / "site-packages"
    for directory in (home / "bin", packages, scripts):
        directory.mkdir(parents=True)
    python = torch.home / "bin" / "python"
    for name, text in (
        ("python", f'#!/bin/sh\nexec {python} "$@"\n'),
        ("kubeai-python", f"#!{python}\n{_COMMAND}"),
    ):
        (home / "bin" / name).write_text(text, encoding="ascii")
        (home / "bin" / name).chmod(0o755)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("KUBEAI_", "PYTEST_"))}
    paths = {"PYTHONUSERBASE": str(home), "PYTHONPATH": os.pathsep.join([str(SDK), str(packages)])}
    named = {"KUBEAI_WARM_DIR": str(templates)}
    return WarmPrograms(home, scripts, templates, {**inherited, **_QUIET, **paths, **named})


@dataclass(frozen=True, slots=True)
class TrainedWorker:
    """What a training script has printed, and when it began.

    Attributes:
        parent: The process that has forked or started it.
        had: Whether torch was imported before the script ran.
        losses: Of each step, as `float.hex` gives them.
        seconds: From the start of its command to the end of its first step.
    """

    parent: int
    had: bool
    losses: tuple[str, ...]
    seconds: float


def trained(programs: WarmPrograms, program: str, script: str = "train.py") -> TrainedWorker:
    """Run a training script to its end."""
    began = time.time()
    ran = getattr(programs, program)(script)
    assert ran.returncode == 0, ran.stderr
    said = json.loads(ran.stdout.splitlines()[-1])
    return TrainedWorker(said["parent"], said["had"], tuple(said["losses"]), said["first"] - began)


def plan_of(template: int) -> dict[str, Any]:
    """The plan that a template has read from its standard input."""
    plan: dict[str, Any] = json.loads(Path(f"/proc/{template}/fd/0").read_text(encoding="ascii"))
    return plan


def devices_of(pid: int) -> set[str]:
    """The devices of GPUs that a process has open or mapped."""
    found = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            found.add(str(descriptor.readlink()))
    maps = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace")
    found.update(line.split(maxsplit=5)[-1] for line in maps.splitlines())
    return {path for path in found if path.startswith("/dev/nvidia")}


def threads_of(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def processes_on_gpu() -> set[int]:
    """The processes that nvidia-smi lists; none where it is missing, or sees no processes from a container."""
    return {int(line.split(",")[0]) for line in _asked("--query-compute-apps=pid")}


def memory_used() -> int:
    """MiB of the first GPU."""
    return int(_asked("--query-gpu=memory.used")[0])


def _asked(query: str) -> list[str]:
    if shutil.which("nvidia-smi") is None:
        return []
    command = ["nvidia-smi", query, "--format=csv,noheader,nounits"]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    sys.stdout.write(f"{query}: {said.stdout}")
    return [line for line in said.stdout.splitlines() if line.split(",")[0].strip().isdecimal()]
