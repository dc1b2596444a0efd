"""A job under kubeai-run whose launcher is Horovod's real elastic driver."""

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from simulator.cloud.paths import CloudPaths
from simulator.cloud.process import script
from simulator.services import ServedJobPlan
from tests.frameworks import frameworks_installation
from tests.horovod.horovod_installation import site_packages

_HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True, kw_only=True)
class HorovodPlan(ServedJobPlan):
    """A job as its user would describe it, one slot a host.

    Attributes:
        home: The environment that has Horovod.
        discovery: The host discovery script; `kubeai-discover-hosts` where none is named.
        gloo: The environment has torch and a compiled core, whose collectives the workers use.
        reset_seconds: How much longer than necessary each worker takes to leave a ring (only with gloo).
        step_seconds: As in every plan.
        commit_every: Steps between two commits.
    """

    home: Path
    discovery: str = ""
    gloo: bool = False
    reset_seconds: float = 0.0
    step_seconds: float = 0.05
    commit_every: int = 1

    def command(self, paths: CloudPaths, supervisor_url: str, token: Path) -> list[str]:
        return [*self._run(paths, supervisor_url, token), "--", *self._launcher(), *self._script(paths)]

    def _launcher(self) -> Iterator[str]:
        modules = os.pathsep.join([str(_HERE.parents[1]), *map(str, self._site_packages())])
        # The hosts' names resolve nowhere, so the driver starts its workers over ssh: the stand-in.
        path = os.pathsep.join([str(_HERE / "bin"), str(Path(script("python")).parent), os.defpath])
        yield from ("env", f"PYTHONPATH={modules}", f"PATH={path}", "OMP_NUM_THREADS=1")
        if self.gloo:
            yield from ("HOROVOD_COLLECTIVES=gloo", f"HOROVOD_RESET_SECONDS={self.reset_seconds}")
        yield from (str(self.home / "bin" / "python"), str(_HERE / "horovod_driver.py"))
        yield from ("-np", "{workers}", "--min-np", str(self.min_workers), "--max-np", str(self.max_workers))
        # Asked for, or it would start a service of its own on every host to find an interface that all can reach.
        yield from ("--network-interface", "lo")
        if self.gloo:
            # The others wait so long for a new worker, which imports torch first.
            yield from ("--gloo-timeout-seconds", "120")
        yield from ("--host-discovery-script", self.discovery or script("kubeai-discover-hosts"))
        yield from self.launcher_arguments

    def _script(self, paths: CloudPaths) -> Iterator[str]:
        yield from (sys.executable, str(_HERE / "horovod_worker.py"))
        yield from ("--steps", str(self.steps), "--step-seconds", str(self.step_seconds), "--seed", str(self.seed))
        yield from ("--commit-every", str(self.commit_every))
        yield from ("--checkpoint", str(paths.job(self.name) / "checkpoint"))
        yield from self.job_arguments

    def _site_packages(self) -> Iterator[Path]:
        yield site_packages(self.home)
        if self.gloo:
            yield frameworks_installation.site_packages(frameworks_installation.installed())
