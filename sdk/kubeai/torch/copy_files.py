"""Keeps memory in files of a host, such as in /dev/shm, where copies of a state outlive the process that made them.

A copy of one part is two files in a directory of the process. `NAME.rows` is mapped, and has the rows of its tensors.
`NAME.part` has all else. It is renamed into its place once the rows are complete, and removed before they change. So
whenever processes are killed, whoever starts after them finds whole parts only. Of which state the hosts together have
all parts is for `moves.newest_whole` to say.

Nothing here needs torch.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import mmap
import os
import re
import secrets
import stat
import struct
import time
from dataclasses import astuple
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Sequence

from kubeai.elastic import identity

from .moves import PartClaim
from .stderr import say

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_MAGIC = b"kubeai copy 1\n"
_HEAD = struct.Struct(">5q")
"""The size of the rows in bytes, and the numbers of the claim."""
_LOCK = "lock"
_ROWS, _PART, _DRAFT = ".rows", ".part", ".draft"
_SLOT = re.compile(r"kubeai-copies-[0-9a-f]{16}-(\d{1,6})")
_MOST_PARTS = 1 << 20
_STALE_SECONDS = 24 * 3600.0
"""A directory that nobody uses, and in which nothing was written for this long, is left over from a job that ended."""
_NEW = os.O_CREAT | os.O_EXCL
_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NONBLOCK | _FLAGS
_FOR_OTHERS = 0o077


class FoundCopy(NamedTuple):
    """A part that another process has left.

    Attributes:
        file: Its rows.
        claim: Which part of which state it is.
        rest: All else of it, as it was given to `publish`.
    """

    file: CopyFile
    claim: PartClaim
    rest: bytes


class CopyFile:
    """The files of one part.

    Args:
        directory: Its descriptor.
        name: Without a suffix.
        memory: The rows, mapped. What is written there is in the file, unless another process has made it.
    """

    def __init__(self, directory: int, name: str, memory: mmap.mmap) -> None:
        self.memory = memory
        self._directory, self._name = directory, name

    @property
    def place(self) -> tuple[int, str]:
        """The directory and the name."""
        return self._directory, self._name

    def publish(self, claim: PartClaim, rest: bytes) -> None:
        """Offer the part to processes that start later: its rows are complete. Raises OSError.

        Args:
            claim: Which part of which state it is.
            rest: All of it but its rows.
        """
        draft = self._name + _DRAFT
        descriptor = os.open(draft, os.O_WRONLY | _NEW | _FLAGS, 0o600, dir_fd=self._directory)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(_MAGIC + _HEAD.pack(len(self.memory), *astuple(claim)) + rest)
            os.rename(draft, self._name + _PART, src_dir_fd=self._directory, dst_dir_fd=self._directory)
        except OSError:
            _unlink(draft, self._directory)
            raise

    def withdraw(self) -> None:
        """Offer the part no longer, because its rows are about to change. Raises OSError."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._name + _PART, dir_fd=self._directory)

    def remove(self) -> None:
        """Remove the files. The memory remains as long as it is used."""
        for suffix in (_PART, _ROWS):
            _unlink(self._name + suffix, self._directory)


class CopyFiles:
    """The files of one process, and those that it takes over from processes that were there before.

    While a process has them, no other process can.

    Args:
        slots: Descriptors of directories, that of this process first.
        locks: Descriptors that hold their locks.
        paths: Of the directories.
    """

    def __init__(self, slots: Sequence[int], locks: Sequence[int], paths: Sequence[Path]) -> None:
        self._slots, self._locks, self._paths = slots, locks, paths

    @classmethod
    def opened(cls, parent: Path, key: str, local_rank: int, local_size: int) -> CopyFiles:
        """Take the directory of this process, and those of processes of this host that exist no longer.

        Raises OSError: `parent` cannot be used, or another process has the directory.

        Args:
            parent: Where the directories are.
            key: Of the job, 16 hexadecimal digits.
            local_rank: The number of this process among those of the host.
            local_size: How many of them there are.
        """
        _remove_stale(parent, time.time())
        own = parent / f"kubeai-copies-{key}-{local_rank}"
        with contextlib.suppress(FileExistsError):
            own.mkdir(mode=0o700)
        taken = [(*_take(own), own)]
        for path in sorted(parent.glob(f"kubeai-copies-{key}-*")):
            if is_taken_over(_number_of(path), local_rank, local_size):
                with _said():
                    taken.append((*_take(path), path))
        return cls(*zip(*taken))

    def found(self) -> list[FoundCopy]:
        """Return the parts that are there, and remove what is no part. A part that is malformed costs a line."""
        copies = [_read(*place) for place in self._places()]
        found = [copy for copy in copies if copy is not None]
        self.keep_only([each.file for each in found])
        return found

    def make(self, size: int) -> CopyFile:
        """Return a new file for rows of `size` bytes, at least 1. Raises OSError if there is no room for them."""
        slot, name = self._slots[0], secrets.token_hex(8)
        descriptor = os.open(name + _ROWS, os.O_RDWR | _NEW | _FLAGS, 0o600, dir_fd=slot)
        try:
            os.posix_fallocate(descriptor, 0, size)  # memory that is not there would end the process with SIGBUS
            return CopyFile(slot, name, mmap.mmap(descriptor, size))
        except OSError:
            _unlink(name + _ROWS, slot)
            raise
        finally:
            os.close(descriptor)

    def keep_only(self, files: Sequence[CopyFile]) -> None:
        """Remove all others."""
        kept = {each.place for each in files}
        for slot, name in self._places():
            if (slot, name) not in kept:
                for suffix in (_PART, _ROWS, _DRAFT):
                    _unlink(name + suffix, slot)

    def remove(self) -> None:
        """Remove all files and directories, and let go of them."""
        self.keep_only(())
        for path, slot in zip(self._paths, self._slots):
            _unlink(_LOCK, slot)
            with contextlib.suppress(OSError):
                path.rmdir()
        self.close()

    def close(self) -> None:
        """Leave what is there to processes that start later. Copies that are made afterwards fail."""
        for descriptor in (*self._locks, *self._slots):
            os.close(descriptor)
        self._slots = self._locks = self._paths = ()

    def _places(self) -> list[tuple[int, str]]:
        """Return the directory and the name of each copy, or what is left of one."""
        return [(slot, name) for slot in self._slots for name in sorted(_names(slot))]


def is_taken_over(number: int, local_rank: int, local_size: int) -> bool:
    """Return whether a process takes over the files of process `number`, which its host does not have any more."""
    return number >= local_size and number % local_size == local_rank


def job_key(environ: Mapping[str, str], checkpoints: str | os.PathLike[str]) -> str:
    """Return what names this job on this host, until the host starts anew: 16 hexadecimal digits.

    What distinguishes jobs is the identity that the launcher has been given, that of the supervisor, and where their
    checkpoints are. A launcher that was given none is its own identity.

    Args:
        environ: The variables of this process.
        checkpoints: The directory of the checkpoints.
    """
    run = environ.get("TORCHELASTIC_RUN_ID", "none")
    known = identity.read(identity.directory())
    job = known.job if known is not None else None
    launcher = "" if run != "none" or job is not None else _process(os.getppid())
    return key_of(run, job or "", launcher, _text("/proc/sys/kernel/random/boot_id"), os.path.abspath(checkpoints))  # noqa: PTH100 - not resolved


def key_of(*facts: str) -> str:
    """Return 16 hexadecimal digits that stand for some facts."""
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


def _process(number: int) -> str:
    """Return the number of a process and the time of its start, as numbers are used again."""
    fields = _text(f"/proc/{number}/stat").rpartition(")")[2].split()
    return f"{number} {fields[19] if len(fields) > 19 else ''}"  # noqa: PLR2004 - as of proc(5)


def _text(path: str) -> str:
    with contextlib.suppress(OSError):
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    return ""


def _number_of(path: Path) -> int:
    match = _SLOT.fullmatch(path.name)
    return int(match[1]) if match else -1


def _take(path: Path) -> tuple[int, int]:
    """Open and lock a directory of this user; returns its descriptor, and the one that holds the lock.

    Such a lock ends with its process, and is not that of a child which may live on, such as a worker of a loader.
    """
    slot = os.open(path, os.O_RDONLY | os.O_DIRECTORY | _FLAGS)
    try:
        _require_own(slot, str(path))
        lock = os.open(_LOCK, os.O_RDWR | os.O_CREAT | _FLAGS, 0o600, dir_fd=slot)
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(lock)
            if error.errno in (errno.EAGAIN, errno.EACCES):
                raise BlockingIOError(error.errno, f"another process uses {path}") from error
            raise
    except OSError:
        os.close(slot)
        raise
    return slot, lock


def _require_own(descriptor: int, name: str) -> os.stat_result:
    """Raise PermissionError if another user could have written what is there: it is unpickled."""
    found = os.fstat(descriptor)
    if found.st_uid != os.geteuid() or found.st_mode & _FOR_OTHERS:
        raise PermissionError(errno.EPERM, f"{name} is not this user's alone")
    return found


def _names(slot: int) -> set[str]:
    """Return the names of what is in a directory, without their suffixes."""
    return {name.partition(".")[0] for name in os.listdir(slot) if name != _LOCK}


def _read(slot: int, name: str) -> FoundCopy | None:
    """Return a part; None if it is not complete, or malformed."""
    with _said(), contextlib.suppress(FileNotFoundError):
        return _checked(slot, name, _content(slot, name + _PART))
    return None


@contextlib.contextmanager
def _said() -> Iterator[None]:
    """Write a line for an error of files, which costs no more than what is in them."""
    try:
        yield
    except (OSError, ValueError) as error:
        say(f"a copy of the state is ignored: {error}")


def _checked(slot: int, name: str, content: bytes) -> FoundCopy:
    """Return a part from the content of its file. Raises OSError, or ValueError if it is malformed."""
    at = len(_MAGIC)
    if not content.startswith(_MAGIC) or len(content) < at + _HEAD.size:
        raise ValueError(f"{name}{_PART} is malformed")
    size, *numbers = _HEAD.unpack_from(content, at)
    claim = PartClaim(*numbers)
    if size < 1 or claim.step < 0 or not 0 <= claim.part < claim.parts <= _MOST_PARTS:
        raise ValueError(f"{name}{_PART} is malformed")
    descriptor = os.open(name + _ROWS, _READ, dir_fd=slot)
    try:
        if _require_own(descriptor, name + _ROWS).st_size != size:
            raise ValueError(f"{name}{_ROWS} does not have {size} bytes")
        # Whatever is made of it, the file remains as it is.
        memory = mmap.mmap(descriptor, size, access=mmap.ACCESS_COPY)
    finally:
        os.close(descriptor)
    return FoundCopy(CopyFile(slot, name, memory), claim, content[at + _HEAD.size :])


def _content(slot: int, name: str) -> bytes:
    descriptor = os.open(name, _READ, dir_fd=slot)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(_require_own(descriptor, name).st_mode):
            raise ValueError(f"{name} is no file")
        return file.read()


def _remove_stale(parent: Path, now: float) -> None:
    """Remove directories of this user's jobs that nobody uses, and that are old."""
    for path in parent.iterdir():
        if _SLOT.fullmatch(path.name) is None:
            continue
        with contextlib.suppress(OSError):
            if now - path.lstat().st_mtime > _STALE_SECONDS:
                slot, lock = _take(path)
                CopyFiles([slot], [lock], [path]).remove()


def _unlink(name: str, directory: int) -> None:
    with contextlib.suppress(OSError):
        os.unlink(name, dir_fd=directory)
