"""A job under kubeai-run whose launcher is Horovod's real elastic driver."""

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from simulator.cloud.paths import WorldPaths
from simulator.cloud.process import script
from simulator.services import JobPlan
from tests.horovod.horovod_installation import site_packages

_HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True, kw_only=True)
class HorovodPlan(JobPlan):
    """A job as its user would describe it, one slot a host.

    Attributes:
        home: The environment that has Horovod.
        discovery: The host discovery script; `kubeai-discover-hosts` where none is named.
    """

    home: Path
    discovery: str = ""
    step_seconds: float = 0.05

    def command(self, paths: WorldPaths, supervisor_url: str, token: Path) -> list[str]:
        return [*self._run(paths, supervisor_url, token), "--", *self._launcher(), *self._script(paths)]

    def _launcher(self) -> Iterator[str]:
        modules = os.pathsep.join([str(_HERE.parents[1]), str(site_packages(self.home))])
        # The hosts' names resolve nowhere, so the driver starts its workers over ssh: the stand-in.
        path = os.pathsep.join([str(_HERE / "bin"), str(Path(script("python")).parent), os.defpath])
        yield from ("env", f"PYTHONPATH={modules}", f"PATH={path}")
        yield from (str(self.home / "bin" / "python"), str(_HERE / "horovod_driver.py"))
        yield from ("-np", "{workers}", "--min-np", str(self.min_workers), "--max-np", str(self.max_workers))
        # Asked for, or it would start a service of its own on every host to find an interface that all can reach.
        yield from ("--network-interface", "lo")
        yield from ("--host-discovery-script", self.discovery or script("kubeai-discover-hosts"))
        yield from self.launcher_arguments

    def _script(self, paths: WorldPaths) -> Iterator[str]:
        yield from (sys.executable, str(_HERE / "horovod_worker.py"))
        yield from ("--steps", str(self.steps), "--step-seconds", str(self.step_seconds), "--seed", str(self.seed))
        yield from ("--checkpoint", str(paths.job(self.name) / "checkpoint"))
        yield from self.job_arguments
