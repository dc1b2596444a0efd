"""The files of parts, in a directory of tmpfs.

A part is received into a draft, which is renamed when it is whole. The name of a whole part has its tenant, the hash of
its state and its number; its time of modification is when it expires. So a new process finds all that it has to know.
Nothing is mapped into memory: where memory runs out, a write fails, and no signal ends the process.
"""

import errno
import fcntl
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import structlog

from node_agent.keeper.ledger import MAX_PART, Part, StateKey, Tenant
from servicekit.kubernetes.errors import ConfigurationError

_NAME = re.compile(r"(?P<tenant>[a-z0-9-]{1,63})\.(?P<state>[0-9a-f]{64})\.(?P<number>[0-9]{1,7})")
_LEFTOVER = re.compile(r"(?:draft|removed)-[0-9]+")
_LOCK = "lock"

_NO_ROOM = (errno.ENOSPC, errno.ENOMEM, errno.EDQUOT, errno.EFBIG)

_log = structlog.get_logger()


class HostFullError(Exception):
    """The directory has no memory left, although the bounds allow more."""


@dataclass(eq=False, slots=True)
class DraftFile:
    """The file of a part that is being received.

    Its memory is taken as its bytes arrive. To take all of it before the first byte would last for as long as a
    request may: 2 GB each second, for all parts together.
    """

    path: Path
    descriptor: int
    room: int
    written: int = 0

    def write(self, data: bytes) -> None:
        """Appends bytes.

        Raises:
            HostFullError: There is no memory for them.
        """
        rest = memoryview(data)
        try:
            while rest:
                count = os.pwrite(self.descriptor, rest, self.written)
                self.written += count
                rest = rest[count:]
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            raise HostFullError(os.strerror(error.errno)) from error


class PartFiles:
    """The directory with the files of parts.

    Args:
        directory: Is made if its parent is there. Only this process may use it.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._serial = 0
        self._drafts: set[DraftFile] = set()
        self._lock: int | None = None

    def open(self) -> None:
        """Makes the directory, and keeps other keepers from it until `close`.

        Raises:
            ConfigurationError: It cannot be used, or another process uses it.
        """
        try:
            self._directory.mkdir(mode=0o700, exist_ok=True)
            self._lock = os.open(self._directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.close()
            raise ConfigurationError(f"another keeper uses {self._directory}") from error
        except OSError as error:
            raise ConfigurationError(f"the directory cannot be used: {error}") from error

    def close(self) -> None:
        """Lets another keeper use the directory."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def free(self) -> int:
        """Returns the bytes that the file system has left, without those that drafts still have to take."""
        found = os.statvfs(self._directory)
        promised = sum(draft.room - draft.written for draft in self._drafts)
        return max(0, found.f_bavail * found.f_frsize - promised)

    def recover(self, latest: float) -> Iterator[Part]:
        """Yields the whole parts that an earlier process has left, and removes what it was about to receive or remove.

        Args:
            latest: No part is kept beyond this instant (Unix seconds): the system's clock may have been set.
        """
        for path in sorted(self._directory.iterdir()):
            if _LEFTOVER.fullmatch(path.name):
                path.unlink()
            elif (found := _NAME.fullmatch(path.name)) and int(found["number"]) <= MAX_PART:
                about = path.stat()
                yield Part(
                    tenant=Tenant(found["tenant"]),
                    state=StateKey(found["state"]),
                    number=int(found["number"]),
                    length=about.st_size,
                    until=min(about.st_mtime, latest),
                )
            elif path.name != _LOCK:
                _log.warning("keeper.foreign_file", name=path.name)

    def draft(self, room: int) -> DraftFile:
        """Makes an empty draft, to be closed with `close_draft`.

        Raises:
            HostFullError: The file system has less than `room` bytes.
        """
        if room > self.free():
            raise HostFullError("its file system is full")
        path = self._unique("draft")
        draft = DraftFile(path, os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), room)
        self._drafts.add(draft)
        return draft

    def close_draft(self, draft: DraftFile) -> None:
        """Closes a draft, whether it was kept or not."""
        self._drafts.remove(draft)
        os.close(draft.descriptor)

    def keep(self, draft: DraftFile, part: Part) -> Path | None:
        """Makes a draft the file of a part, at once in the place of an older one; returns that one's new name."""
        path, older = self._path(part), self._unique("removed")
        os.utime(draft.descriptor, (part.until, part.until))
        try:
            older.hardlink_to(path)
        except FileNotFoundError:
            draft.path.rename(path)
            return None
        draft.path.rename(path)
        return older

    def read(self, part: Part) -> int:
        """Opens the file of a part and returns the descriptor."""
        return os.open(self._path(part), os.O_RDONLY | os.O_CLOEXEC)

    def retire(self, part: Part) -> Path:
        """Renames the file of a part, so that nobody opens it any more; returns the name by which it is to be freed."""
        path = self._unique("removed")
        self._path(part).rename(path)
        return path

    def _path(self, part: Part) -> Path:
        return self._directory / f"{part.tenant}.{part.state}.{part.number}"

    def _unique(self, kind: str) -> Path:
        self._serial += 1
        return self._directory / f"{kind}-{self._serial}"


def free_memory(path: Path) -> None:
    """Removes a file, and frees its memory also where somebody still reads it. Takes half a second for a gigabyte."""
    os.truncate(path, 0)
    path.unlink()
