"""The machine, and the resources that a process uses, from /proc."""

import os
import platform
from dataclasses import dataclass
from pathlib import Path

from benchmarks.results import ResultMachine

_TICKS = os.sysconf("SC_CLK_TCK")
_USER_TICKS, _SYSTEM_TICKS = 11, 12
"""Positions in /proc/PID/stat, counted after the command's closing parenthesis."""


@dataclass(frozen=True, slots=True)
class Usage:
    """CPU seconds of a process since its start, its resident bytes now, and the most that they have been."""

    cpu_seconds: float
    resident_bytes: int
    peak_bytes: int


def usage(pid: int) -> Usage:
    """Return the usage of a running process. Raises OSError if it does not run."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    ticks = int(fields[_USER_TICKS]) + int(fields[_SYSTEM_TICKS])
    status = Path(f"/proc/{pid}/status")
    return Usage(ticks / _TICKS, _number(status, "VmRSS") * 1024, _number(status, "VmHWM") * 1024)


def wake_ups(pid: int) -> int:
    """Return how often threads of a running process have gone to sleep, without those that have ended."""
    return sum(_number(status, "voluntary_ctxt_switches") for status in Path(f"/proc/{pid}/task").glob("*/status"))


def machine() -> ResultMachine:
    """Describe this machine, without anything that identifies it."""
    return ResultMachine(
        cores=os.cpu_count() or 1,
        cpu=_cpu(),
        memory_bytes=_number(Path("/proc/meminfo"), "MemTotal") * 1024,
        python=platform.python_version(),
    )


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()


def _number(path: Path, field: str) -> int:
    for line in path.read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0])
    raise OSError(f"{path} has no {field}")
