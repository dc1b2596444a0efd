"""The files of `dev`, in one directory that only its owner may read."""

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from job_supervisor.cli.dev_directory import LOCK_FILE
from job_supervisor.dev.errors import UsageError
from servicekit.files import write_private
from supervisor.identity.tokens import Tokens


@dataclass(frozen=True, slots=True)
class Workspace:
    """The paths; `directory` is the supervisor's data directory and contains all the others."""

    directory: Path

    @property
    def hosts_file(self) -> Path:
        return self.directory / "hosts"

    @property
    def viewer_token(self) -> Path:
        return self.directory / "viewer.token"

    @property
    def launcher_token(self) -> Path:
        return self.directory / "launcher.token"

    @property
    def job(self) -> Path:
        """The directory of the sample job: `checkpoint`, and `progress/`."""
        return self.directory / "job"

    @property
    def progress(self) -> Path:
        return self.job / "progress"

    @property
    def logs(self) -> Path:
        return self.directory / "logs"

    def log(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    def agent_token(self, host: str) -> Path:
        return self.directory / "agents" / f"{host}.token"

    def reclaim_file(self, host: str) -> Path:
        """The file that announces a reclaim of the host, which its agent watches."""
        return self.directory / "agents" / f"{host}.reclaim"

    def clear(self) -> None:
        """Removes all files of `dev`."""
        for entry in self.directory.iterdir():
            if entry.name == LOCK_FILE:
                continue
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()

    def prepare(self, hosts: tuple[str, ...]) -> None:
        """Writes the tokens and the host list."""
        tokens = Tokens.load(self.directory)
        for folder in ("agents", "logs", "job"):
            (self.directory / folder).mkdir(mode=0o700)
        for host in hosts:
            write_private(self.agent_token(host), tokens.agent(host) + "\n")
        write_private(self.launcher_token, tokens.launcher("dev") + "\n")
        write_private(self.viewer_token, tokens.viewer() + "\n")
        write_private(self.hosts_file, "".join(f"{host}\n" for host in hosts))


@contextmanager
def claimed(directory: Path) -> Iterator[Workspace]:
    """Takes the directory, empties it of what an earlier `dev` has left, and releases it at the end.

    Raises:
        UsageError: Another `dev` uses it, or it contains something else.
        OSError: It cannot be created or written.
    """
    if directory.exists() and not directory.is_dir():
        raise UsageError(f"{directory} is not a directory. Choose another one with --data-dir.")
    lock = directory / LOCK_FILE
    if directory.exists() and any(directory.iterdir()) and not lock.exists():
        raise UsageError(f"{directory} contains files that are not of `dev`. Choose another directory with --data-dir.")
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    directory.chmod(0o700)
    with lock.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            message = f"Another `dev` runs with {directory}. End it first, or choose another directory with --data-dir."
            raise UsageError(message) from error
        workspace = Workspace(directory)
        workspace.clear()
        yield workspace
