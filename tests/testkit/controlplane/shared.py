"""One control plane for all processes of a test run.

Every process holds a shared lock while it uses it. The first one starts a keeper, which has the programs and asks for
the lock for itself: it gets it when the last user is gone, however that ended, and ends too. Killed itself, it takes
the programs with it. So there is nothing to count, and nothing to clean up at the next start.

Run as a module: is the keeper, for a directory.
"""

import fcntl
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from tests.testkit.controlplane.binaries import binaries
from tests.testkit.controlplane.running import NotReady, RunningCluster, running

_ROOT = Path(__file__).parents[3]


@contextmanager
def shared(meeting: Path) -> Iterator[RunningCluster]:
    """The control plane of all who meet in that directory, started by the first.

    Raises:
        NotReady: It does not start.
    """
    with _users(meeting).open("w") as users:
        # Waits for a keeper that is just ending.
        fcntl.flock(users, fcntl.LOCK_SH)
        yield _started(meeting)


def _started(meeting: Path) -> RunningCluster:
    with (meeting / "controlplane.starting").open("w") as starting:
        fcntl.flock(starting, fcntl.LOCK_EX)
        if not _present(meeting).exists():
            _start_keeper(meeting)
    return RunningCluster(Path(_present(meeting).read_text(encoding="utf-8")))


def _start_keeper(meeting: Path) -> None:
    log = meeting / "controlplane.keeper.log"
    # It forks: the keeper is nobody's child, as it may outlive the process that happened to be first.
    command = ["setsid", "--fork", sys.executable, "-m", __name__, str(meeting)]
    with log.open("a") as said:
        starter = subprocess.Popen(command, cwd=_ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=said)
    with starter, starter.stdout or nullcontext() as answer:
        if not answer or not answer.readline():
            raise NotReady(log.read_text(encoding="utf-8"))


def _keep(meeting: Path) -> None:
    directory = Path(tempfile.mkdtemp(dir=meeting, prefix="controlplane-"))
    with running(binaries(), directory), _users(meeting).open() as users:
        _present(meeting).write_text(str(directory), encoding="utf-8")
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        fcntl.flock(users, fcntl.LOCK_EX)
        _present(meeting).unlink()


def _users(meeting: Path) -> Path:
    return meeting / "controlplane.users"


def _present(meeting: Path) -> Path:
    return meeting / "controlplane.present"


if __name__ == "__main__":
    _keep(Path(sys.argv[1]))
