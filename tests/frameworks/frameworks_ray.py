"""Jobs of Ray Train: a driver that starts a Ray of its own, whose workers are the ranks.

with ray_script(ray, tmp_path / "checkpoints", 600) as script:
    async with training(tmp_path, script) as job:
        …

On a machine that is far too busy, `ray.init` fails: Ray ends unless its agents have started within 15 s, which no
setting changes.
"""

import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from simulator.cloud.process import Leftover
from tests.frameworks.frameworks_world import FrameworksScript, example
from tests.testkit.waiting import until, wait_until

WORKERS = 2
_END_SECONDS = 30.0
"""Ray's workers end some seconds after the process that has started them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RayScript(FrameworksScript):
    """A script of Ray Train.

    Attributes:
        temporary: Directory of Ray's sockets and logs. Its path is short, as those of sockets have to be.
    """

    temporary: Path
    processes: int = WORKERS

    def command(self) -> list[str]:
        driver = str(Path(__file__).with_name("frameworks_ray_driver.py"))
        return [str(self.home / "bin" / "python"), driver, str(self.path), *self.arguments, str(self.processes)]

    def environment(self, losses: Path) -> dict[str, str]:
        return {
            **FrameworksScript.environment(self, losses),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_TMPDIR": str(self.temporary),
            # Otherwise Ray writes a token to the user's home.
            "RAY_AUTH_TOKEN": "a token of a test, with 32 or more characters",
            # On every system, this has all of its servers listen on loopback alone.
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        }

    def running(self) -> list[Leftover]:
        """The processes of its Ray.

        Ray's names for them overwrite the marks of their environment, but each one has a log file open.
        """
        return [Leftover(pid, _name(pid)) for pid in _pids() if _has_open(pid, self.temporary)]

    def signal_controller(self, number: signal.Signals) -> None:
        """Send a signal to the process in which Ray Train records the checkpoints of all workers."""
        (controller,) = (one for one in self.running() if one.command.startswith("ray::TrainController"))
        os.kill(controller.pid, number)

    async def until_ended(self) -> None:
        """Wait until Ray has ended all of its processes itself."""
        await until(lambda: not self.running(), lambda: str(self.running()), seconds=_END_SECONDS)


@contextmanager
def ray_script(home: Path, checkpoints: Path, steps: int) -> Iterator[RayScript]:
    """A script with an empty directory for Ray. At the end, processes of its Ray that still run are killed."""
    with tempfile.TemporaryDirectory(prefix="ray-") as temporary:
        arguments = (str(checkpoints), str(steps))
        script = RayScript(home, example("ray_train.py"), arguments, temporary=Path(temporary))
        try:
            yield script
        finally:
            wait_until(lambda: not _killed(script), "no process of Ray to be left")


def _killed(script: RayScript) -> list[Leftover]:
    left = script.running()
    for one in left:
        with suppress(ProcessLookupError):
            os.kill(one.pid, signal.SIGKILL)
    return left


def _pids() -> Iterator[int]:
    return (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal())


def _has_open(pid: int, directory: Path) -> bool:
    with suppress(OSError):
        for file in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                if file.readlink().is_relative_to(directory):
                    return True
    return False


def _name(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    return "?"
