"""Imports what a template is for, and finds what speaks against a fork of the process afterwards."""

from __future__ import annotations

import contextlib
import os
import selectors
import sys
from dataclasses import dataclass, field
from pathlib import Path

from kubeai.warm import imports, variables
from kubeai.warm.plan import TemplatePlan, began

_QUIET_SECONDS = 5.0  # without a further import, a program has begun its work
_OWN_PROCESS = Path("/proc/self")
_DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/dri/", "/dev/accel", "/dev/davinci", "/dev/vfio", "/dev/infiniband")


@dataclass
class Findings:
    """What is known against the imports of this process.

    Attributes:
        blamed: Modules to leave out, with the reason.
        threads: How many threads there are that a fork does not end.
        open: Connections and devices that are open.
    """

    blamed: dict[str, str] = field(default_factory=dict)
    threads: int = 1
    open: frozenset[str] = frozenset()

    def look(self, name: str, reads: variables.Reads) -> None:
        """Note what the import of a module has brought."""
        threads, now = lasting_threads(), connections_and_devices()
        if threads > self.threads:
            self.blamed.setdefault(name, "it starts a thread")
        for link in sorted(now - self.open):
            self.blamed.setdefault(name, f"it opens {link}")
        self.threads, self.open = max(threads, self.threads), self.open | now
        for variable in reads.take_new():
            if variables.is_per_process(variable):
                for module in (name, *reads.by[variable]):
                    self.blamed.setdefault(module, f"it reads {variable}")


def lasting_threads() -> int:
    """Return how many threads there are. Those that a library ends before each fork, as OpenBLAS does, do not count."""
    tasks = _OWN_PROCESS / "task"
    count = sum(1 for _ in tasks.iterdir())
    if count == 1:
        return 1
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    return sum(1 for _ in tasks.iterdir())


def connections_and_devices() -> frozenset[str]:
    """Return what is open and cannot be shared with a fork."""
    found = set()
    for descriptor in (_OWN_PROCESS / "fd").iterdir():
        with contextlib.suppress(OSError):
            link = os.readlink(descriptor)
            if link.startswith(("socket:", *_DEVICES)):
                found.add(link)
    return frozenset(found)


def learned(plan: TemplatePlan) -> tuple[str, ...]:
    """Return what the first worker has imported, once it imports no more or has ended."""
    if plan.learns is None:
        return plan.names
    with selectors.DefaultSelector() as selector, os.fdopen(plan.learns, "rb", buffering=0) as pipe:
        selector.register(pipe, selectors.EVENT_READ)
        said = b""
        while True:
            if not selector.select(_QUIET_SECONDS):
                if said or not began(plan.owner):
                    break
                continue
            part = pipe.read(1 << 16)
            if not part:
                break
            said += part
    return tuple(dict.fromkeys((*plan.names, *said.decode(errors="replace").split())))


def import_all(plan: TemplatePlan, reads: variables.Reads) -> Findings:
    """Import what the plan names and is installed; returns what is known against it."""
    findings = Findings(open=connections_and_devices())
    directories = imports.installed_directories()
    with variables.watched(reads):
        for name in plan.names:
            parts = name.split(".")
            is_left_out = any(".".join(parts[:count]) in plan.without for count in range(1, len(parts) + 1))
            if name in sys.modules or is_left_out or not imports.is_installed(name, directories):
                continue
            imports.load(name)
            findings.look(name, reads)
    return findings
