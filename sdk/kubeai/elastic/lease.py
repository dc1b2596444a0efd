"""The lease on a checkpoint's directory: of several runs of a job, only the one that holds it trains.

Two runs can exist at once where no single API server creates both, such as in two clusters of a fleet: the first one's
pods still have their grace period, or its node has lost the network. The directory that they share is then the only
thing that both can see.

The directory has numbered files, `.lease.000007`, and the highest number holds the lease. It is taken by the exclusive
creation of the next number, which only one of several takers can do, and only if the highest one was released or has
not changed for the time of the lease. The taker reads that time from its own monotonic clock, so the hosts' clocks need
not agree. The holder writes its file again several times in that time. It has lost the lease as soon as it could not
write for two thirds of the time, even if nobody has taken it, so that it has stopped before anybody may take it.

A taker removes the files below its own. A holder therefore also finds that it has lost the lease when it opens its own
file, which NFS always asks the server for, while a client may show the old list of a directory for up to a minute.
"""

from __future__ import annotations

import atexit
import base64
import binascii
import contextlib
import errno
import functools
import json
import math
import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Mapping, NoReturn

from . import identity, threads
from .api import check_alive, directive
from .uplink import host_name

if TYPE_CHECKING:
    from typing import Union

    _Directory = Union[str, "os.PathLike[str]"]

__all__ = ["CheckpointLease", "checkpoint_lease"]

_PREFIX = ".lease."
_LOST = 73  # EX_CANTCREAT of sysexits.h, as of a second kubeai-run of one job
_RESUME = 75  # see `exit_for_resume`
_RENEWALS = 6  # in the time of a lease, so that four may fail
_POLL_SECONDS = 1.0
_MAX_SECONDS = 3600.0  # of what another holder's file may ask a taker to wait for
_MAX_BYTES = 65536

_stderr = threads.StderrLog(lambda: f"{host_name()}, pid {os.getpid()}")
_held: dict[str, CheckpointLease] = {}


def checkpoint_lease(directory: _Directory, *, seconds: float = 30.0) -> CheckpointLease:
    """Wait until this process holds the lease on the directory, and keep it until the process ends.

    Call it in rank 0, after `init` and before the checkpoint is loaded. Another run that holds the lease may save until
    then. Call `check` of the result before each save. A second call for the directory returns the same lease.

    A process that has lost the lease must not train on, as another run may have loaded the checkpoint. It writes a line
    on stderr and ends at once with exit code 73, without `finally` blocks and `atexit` functions.

    Args:
        directory: The checkpoint's directory, which all runs of the job share. It is created if it is missing.
        seconds: The time after which a lease that is not renewed may be taken. A thread renews it six times in that
            time, so let it be longer than any single call that keeps Python's interpreter lock.

    Raises:
        OSError: The directory cannot be created, read or written.
        ValueError: `seconds` is not positive and finite.
        SystemExit: The job was told to stop while this process waited. The code is that of `exit_for_resume`.
    """
    if not (math.isfinite(seconds) and seconds > 0):
        raise ValueError(f"seconds is {seconds}: no time of a lease")
    home = os.path.realpath(directory)
    lease = _held.get(home)
    if lease is None or not lease.is_own:
        os.makedirs(home, exist_ok=True)  # noqa: PTH103 - `home` is a text
        lease = CheckpointLease(Path(home), seconds)
        lease.acquire()
        _held[home] = lease
    return lease


class HolderWatch:
    """Remembers what a waiting process has seen of the present holder, and decides when the lease is free. Pure.

    Args:
        seconds: The process's own time of a lease; a holder's file may say a longer one.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._seen: tuple[int, bytes | None] | None = None
        self._since = math.inf

    def is_free(self, number: int, content: bytes | None, before: float, after: float) -> bool:
        """Return whether the next number may be taken.

        Args:
            number: The highest one, 0 if there is none.
            content: Of its file; None if that is gone.
            before: An instant of a monotonic clock before the look. If this process is stopped for long after that,
                the time has not passed without a look.
            after: An instant after the look.
        """
        if (number, content) != self._seen:
            self._seen, self._since = (number, content), after
        holder = _parsed(content)
        if not number or holder.get("released") is True:
            return True
        return before - self._since >= max(self._seconds, _seconds_of(holder))


class CheckpointLease:
    """The lease of one process on a directory. `checkpoint_lease` acquires it.

    It is released when the process ends with its `atexit` functions, after those that were registered later.

    Attributes:
        number: Grows with each holder of the directory.
    """

    def __init__(self, directory: Path, seconds: float) -> None:
        self.number = 0
        self._directory = directory
        self._seconds = seconds
        self._limit = seconds * 2 / 3
        self._pid = os.getpid()
        self._beats = 0
        self._renewed_at = -math.inf
        self._error: OSError | None = None
        self._writing = threading.Lock()
        self._closed = threading.Event()
        self._ending = threading.Lock()

    @property
    def is_own(self) -> bool:
        """Whether this process has acquired it, and not the one that it was forked from, and has not released it."""
        return self._pid == os.getpid() and not self._closed.is_set()

    def acquire(self) -> None:
        """Wait for the lease and renew it from then on. For `checkpoint_lease`."""
        watch = HolderWatch(self._seconds)
        while True:
            before = time.monotonic()
            number = _highest(self._directory)
            content = _read(_file(self._directory, number)) if number else None
            if watch.is_free(number, content, before, time.monotonic()) and self.take(number + 1):
                break
            if not check_alive():
                raise SystemExit(_RESUME)
            holder = _described(_parsed(content))
            _stderr.once(f"waits for {number}", f"waits for the lease on {self._directory}: {holder}")
            # A directory that hosts share tells nobody of a change.
            time.sleep(min(_POLL_SECONDS, self._seconds / _RENEWALS))
        _stderr.once(f"holds {self.number}", f"holds the lease on {self._directory}, number {self.number}")
        threads.start("kubeai-lease", self._keep_renewing, _stderr, closed=self._closed)
        threads.start("kubeai-lease-time", self._watch_time, _stderr, closed=self._closed)
        atexit.register(self.release)

    def check(self) -> None:
        """Return if the lease is still held; otherwise the process ends as when a renewal finds it lost.

        Call it before each save: a process that was stopped for long, as with SIGSTOP or a paused machine, then writes
        nothing. It lists the directory. A forked child may call it as well.
        """
        if self._closed.is_set():
            self._lose("it was released")
        elif self.is_own and _clock() - self._renewed_at >= self._limit:
            self._lose(self._silence())
        else:
            with contextlib.suppress(OSError):  # then the save fails as well, or the renewals do
                if not self._is_highest():
                    self._lose(self._successor())

    def release(self) -> None:
        """Let another run take the lease at once. Nothing of the checkpoint may be written after that."""
        if not self.is_own:
            return
        if self._writing.acquire(timeout=self._limit):  # a write may hang; until it is closed, the time is watched
            try:
                with contextlib.suppress(OSError):
                    self._write(released=True)
            finally:
                self._closed.set()
                self._writing.release()
        self._closed.set()
        atexit.unregister(self.release)

    def take(self, number: int) -> bool:
        """Create the file of a number; return False if somebody else has it, or has a higher one by now."""
        self.number, begun = number, _clock()
        path = _file(self._directory, number)
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
        except FileExistsError:
            return False
        try:
            # This process may have been stopped since it looked, and the number may be an old one that was removed.
            is_taken = self._write()
        except OSError:
            with contextlib.suppress(OSError):
                path.unlink()
            raise
        if not is_taken:
            with contextlib.suppress(OSError):
                path.unlink()
            return False
        for earlier in _numbers(self._directory):
            if earlier < number:
                with contextlib.suppress(OSError):  # such as that of another user: the number alone decides
                    _file(self._directory, earlier).unlink()
        self._renewed_at = begun
        return True

    def _write(self, *, released: bool = False) -> bool:
        """Write the file of this process, unless it has been removed or has a successor; return whether it is written.

        Raises OSError.
        """
        if not self._is_highest():
            return False
        self._beats += 1
        record = {**_own_names(), "seconds": self._seconds, "beat": self._beats, "released": released}
        content = json.dumps(record).encode()
        try:
            file = os.open(_file(self._directory, self.number), os.O_WRONLY)
        except FileNotFoundError:
            return False
        try:
            os.write(file, content)
            os.ftruncate(file, len(content))
            os.fsync(file)  # an error shows here, and not at a renewal too late
        finally:
            os.close(file)
        return True

    def _is_highest(self) -> bool:
        return _read(_file(self._directory, self.number)) is not None and _highest(self._directory) == self.number

    def renew(self) -> None:
        """Write the file again. The process ends if it is too late for that, even if nobody has taken the lease yet."""
        with self._writing:
            begun = _clock()
            if self._closed.is_set():
                return
            if begun - self._renewed_at >= self._limit:
                self._lose(self._silence())
            try:
                is_held = self._write()
            except OSError as error:
                self._error = error
                return
        if not is_held:
            self._lose(self._successor())
        self._renewed_at = begun

    def _keep_renewing(self) -> None:
        while not self._closed.wait(self._seconds / _RENEWALS):
            self.renew()

    def _watch_time(self) -> None:
        """Notice that the time is over, also while the thread that renews the lease hangs in a write."""
        while True:
            left = self._renewed_at + self._limit - _clock()
            if left <= 0:
                self._lose(self._silence())
            if self._closed.wait(left):
                return

    def _lose(self, why: str) -> NoReturn:
        # Never released: a second thread that finds the lease lost lets the first one write its line.
        self._ending.acquire(timeout=_POLL_SECONDS)
        text = f"the lease on {self._directory} is lost: {why}. Another run may train from this checkpoint"
        _stderr.once("lost", f"{text}, so this process ends")
        os._exit(_LOST)

    def _silence(self) -> str:
        cause = "this process did not run" if self._error is None else str(self._error)
        return f"it could not be renewed for {self._limit:g} s: {cause}"

    def _successor(self) -> str:
        number = _highest(self._directory)
        holder = _parsed(_read(_file(self._directory, number)) if number > self.number else None)
        return f"it was taken: {_described(holder)}" if holder else "its file was removed"


def _clock() -> float:
    """Return seconds that also pass while the machine sleeps. For the holder, for whom more is safe."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


def _file(directory: Path, number: int) -> Path:
    return directory / f"{_PREFIX}{number:06d}"


def _numbers(directory: Path) -> list[int]:
    found = [name[len(_PREFIX) :] for name in os.listdir(directory) if name.startswith(_PREFIX)]  # noqa: PTH208 - fast
    return [int(digits) for digits in found if digits.isdigit() and digits.isascii()]


def _highest(directory: Path) -> int:
    return max(_numbers(directory), default=0)


def _read(path: Path) -> bytes | None:
    """Open and read a file anew, which NFS asks the server for; None if it is gone."""
    try:
        with path.open("rb") as file:
            return file.read(_MAX_BYTES)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ESTALE):
            return None
        raise


def _parsed(content: bytes | None) -> Mapping[str, Any]:
    """Return the record of a holder, nothing while it is being written."""
    try:
        record = json.loads(content or b"")
    except (ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


def _seconds_of(holder: Mapping[str, Any]) -> float:
    seconds = holder.get("seconds")
    return min(float(seconds), _MAX_SECONDS) if isinstance(seconds, (int, float)) and seconds > 0 else 0.0


def _described(holder: Mapping[str, Any]) -> str:
    named = [f"{name} {holder[name]}" for name in ("pod", "job", "run", "cluster") if holder.get(name)]
    return ascii("held by " + ", ".join(named))[1:-1] if named else "its holder is unknown"


def _own_names() -> Mapping[str, object]:
    """Return who holds the lease, for people. The job is known once the supervisor has answered."""
    known, told = identity.read(identity.directory()), directive()
    pod = _pod_of(known.token) if known is not None and known.job is None else {}
    return {
        "cluster": os.environ.get("KUBEAI_CLUSTER", ""),
        "job": told.job or (known.job if known is not None and known.job else ""),
        "pod": pod.get("name") or host_name(),
        "uid": pod.get("uid", ""),
        "run": told.run,
    }


@functools.lru_cache(maxsize=1)
def _pod_of(token: str) -> Mapping[str, Any]:
    """Return name and uid of the pod that a service account's token is for; nothing if it is none."""
    try:
        part = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
        pod = claims["kubernetes.io"]["pod"]
    except (LookupError, TypeError, ValueError, binascii.Error):
        return {}
    return pod if isinstance(pod, dict) else {}
