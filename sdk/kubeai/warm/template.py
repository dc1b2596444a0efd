"""A template: a process that has imported what a program imports, and forks a worker whenever a command asks for one.

    python [OPTIONS] template.py      with a `TemplatePlan` on standard input

It has a single thread, no device and no connection; a module that brings one is left out, and so is one that reads
what differs between processes. A worker that needs another environment than its imports saw is refused, and starts as
usual. Once workers have imported further modules, a successor takes the template's place.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import os
import selectors
import signal
import socket
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Mapping

from kubeai.warm import imports, messages, variables, worker
from kubeai.warm.command_line import PythonCommand
from kubeai.warm.importing import import_all, learned
from kubeai.warm.plan import AGAIN, TemplatePlan, began, begin_again, start
from kubeai.warm.worker import WorkerContext

_QUIET_SECONDS = 5.0  # without a further import, a program has begun its work
_LOOK_SECONDS = 1.0
_REQUEST_SECONDS = 5.0
_MOST_REMAKES = 8
_MOST_SUCCESSORS = 8


@dataclass(eq=False)
class ServedWorker:
    """A worker, the connection of the command that asked for it, and the pipe on which it tells its imports."""

    pid: int
    connection: socket.socket
    pipe: int
    told: str = ""
    has_ended: bool = False

    def kill_all(self) -> None:
        """Kill the worker and all that it has started in its session's process group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


@dataclass(frozen=True)
class WorkerRequest:
    """A fork that has to become a worker."""

    command: PythonCommand
    context: WorkerContext
    files: list[int]
    pipe: int
    parent: int


class Refused(Exception):  # noqa: N818 - what has happened to a request
    """This template does not fit. The worker starts as usual."""


class Template:
    """Serves one program.

    Args:
        plan: What it is.
        variables_at_start: Its environment before the imports.
        reads: What its imports have read.
    """

    def __init__(self, plan: TemplatePlan, variables_at_start: Mapping[str, str], reads: variables.Reads) -> None:
        self._plan = plan
        self._before = dict(variables_at_start)
        self._set = {name: value for name, value in os.environ.items() if self._before.get(name) != value}
        self._unset = [name for name in self._before if name not in os.environ]
        self._reads = reads
        self._installed = _versions()
        self._workers: dict[int, ServedWorker] = {}
        self._selector = selectors.DefaultSelector()
        self._names = list(plan.names)
        self._without = set(plan.without)
        self._changed_at: float | None = None
        self._needed_at = time.monotonic()
        self._wakes, self._woken = os.pipe()
        self._before_serving: Any = signal.SIG_DFL

    def serve(self) -> WorkerRequest | None:
        """Serve until nobody needs this template. Returns None then, and in a fork the request that made it."""
        path = self._plan.path
        with socket.socket(socket.AF_UNIX) as listener:
            draft = path.with_suffix(f".{os.getpid()}")
            listener.bind(str(draft))
            listener.listen(128)
            inode = draft.stat().st_ino
            draft.rename(path)
            os.set_blocking(self._woken, False)
            signal.set_wakeup_fd(self._woken, warn_on_full_buffer=False)
            self._before_serving = signal.signal(signal.SIGCHLD, lambda *_: None)
            self._selector.register(listener, selectors.EVENT_READ)
            self._selector.register(self._wakes, selectors.EVENT_READ)
            _close(self._plan.ready)
            while True:
                for key, _ in self._selector.select(_LOOK_SECONDS):
                    if key.fileobj is listener:
                        request = self._accept(listener)
                        if request is not None:
                            return request
                    elif key.fileobj == self._wakes:
                        os.read(self._wakes, 1 << 12)
                    elif key.data is not None:
                        self._hear(key.data, key.fd)
                self._tell_ends()
                is_present = _inode(path) == inode
                if is_present:
                    self._succeed_once_quiet()
                if not self._is_needed() or not (is_present or self._workers):
                    if is_present:
                        path.unlink()
                    return None

    def _is_needed(self) -> bool:
        """Return whether there is a worker, or its owner may start one soon."""
        now = time.monotonic()
        if self._workers or began(self._plan.owner) == self._plan.owner_began != "":
            self._needed_at = now
            return True
        return now < self._needed_at + self._plan.keep

    def _accept(self, listener: socket.socket) -> WorkerRequest | None:
        """Answer a command. Returns its request in the fork."""
        connection, _ = listener.accept()
        connection.settimeout(_REQUEST_SECONDS)
        try:
            message, files = messages.receive(connection)
        except (OSError, messages.Closed):
            connection.close()
            return None
        try:
            command = PythonCommand.from_fields(message["command"])
            context = WorkerContext.from_fields(message["context"])
            self._check(connection, message["executable"], command, context.environment)
        except (Refused, LookupError, TypeError, ValueError) as reason:
            messages.close_all(files)
            with contextlib.suppress(OSError):
                messages.send(connection, {"refused": str(reason)})
            connection.close()
            return None
        return self._fork(connection, command, context, files)

    def _check(
        self, connection: socket.socket, executable: str, command: PythonCommand, theirs: Mapping[str, str]
    ) -> None:
        """Raise Refused if a fork would not be as a process that is started."""
        if (executable, command.program) != (self._plan.executable, self._plan.command.program):
            raise Refused("the template is of another program")
        peer = _peer(connection)
        for kind in ("ns/mnt", "ns/pid", "ns/net", "ns/user"):
            if _link(peer, kind) != _link("self", kind):
                raise Refused("the template is in another container")
        if _cgroup(peer) != _cgroup("self"):
            raise Refused("the template is in another control group")
        if _versions() != self._installed:
            self._changed_at = self._changed_at or time.monotonic()
            raise Refused("a package has been installed or removed since the template was made")
        differs = variables.difference(self._before, theirs, self._reads)
        if differs is not None:
            self._leave_out(self._reads.by.get(differs, ()))
            raise Refused(f"{differs} differs from its value at the import of the template")

    def _fork(
        self, connection: socket.socket, command: PythonCommand, context: WorkerContext, files: list[int]
    ) -> WorkerRequest | None:
        told, tells = os.pipe()
        parent = os.getpid()
        pid = os.fork()
        if not pid:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, self._before_serving)
            self._selector.close()
            for one in self._workers.values():
                one.connection.close()
                os.close(one.pipe)
            for number in (told, self._wakes, self._woken, connection.detach()):
                os.close(number)
            changed = {name: value for name, value in context.environment.items() if name not in self._unset}
            return WorkerRequest(command, replace(context, environment={**changed, **self._set}), files, tells, parent)
        os.close(tells)
        messages.close_all(files)
        served = self._workers[pid] = ServedWorker(pid, connection, told)
        self._selector.register(connection, selectors.EVENT_READ, served)
        self._selector.register(told, selectors.EVENT_READ, served)
        with contextlib.suppress(OSError):  # a command that is gone is heard of by its connection
            messages.send(connection, {"pid": pid})
        return None

    def _hear(self, served: ServedWorker, number: int) -> None:
        """Read what a worker has imported, or note that its command is gone."""
        if number == served.pipe:
            part = os.read(served.pipe, 1 << 16)
            if part:
                served.told += part.decode(errors="replace")
                *whole, served.told = served.told.split("\n")
                self._add([name for name in whole if name])
            else:
                self._selector.unregister(served.pipe)
            return
        # A command sends nothing more. It has ended, and nothing of its worker may remain.
        served.kill_all()
        os.waitpid(served.pid, 0)
        self._selector.unregister(served.connection)
        with contextlib.suppress(KeyError):
            self._selector.unregister(served.pipe)
        served.connection.close()
        os.close(served.pipe)
        del self._workers[served.pid]

    def _tell_ends(self) -> None:
        """Tell the commands of workers that have ended. Their numbers stay reserved until the commands are gone."""
        for served in self._workers.values():
            if served.has_ended:
                continue
            end = os.waitid(os.P_PID, served.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if end is not None:
                served.has_ended = True
                code = end.si_status if end.si_code == os.CLD_EXITED else -end.si_status
                with contextlib.suppress(OSError):
                    messages.send(served.connection, {"code": code})

    def _add(self, names: list[str]) -> None:
        further = [name for name in dict.fromkeys(names) if name not in self._names]
        if further:
            self._names += further
            self._changed_at = time.monotonic()

    def _leave_out(self, modules: tuple[str, ...]) -> None:
        if not self._without.issuperset(modules):
            self._without.update(modules)
            self._changed_at = time.monotonic() - _QUIET_SECONDS

    def _succeed_once_quiet(self) -> None:
        """Start a successor that has imported, or leaves out, what is known since."""
        if self._changed_at is None or time.monotonic() < self._changed_at + _QUIET_SECONDS:
            return
        self._changed_at = None
        plan = self._plan
        if plan.successors < _MOST_SUCCESSORS:
            plan = replace(plan, names=tuple(self._names), without=tuple(sorted(self._without)))
            plan = replace(plan, ready=None, remakes=0, successors=plan.successors + 1)
            with contextlib.suppress(OSError):
                start(plan, self._before).wait()


def _close(pipe: int | None) -> None:
    if pipe is not None:
        os.close(pipe)


def _inode(path: Path) -> int | None:
    with contextlib.suppress(OSError):
        return path.stat().st_ino
    return None


def _peer(connection: socket.socket) -> str:
    """Return the process at the other end, by its number here. "0" is one that cannot be seen."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    pid, uid = (int.from_bytes(credentials[start : start + 4], sys.byteorder) for start in (0, 4))
    if uid != os.getuid():
        raise Refused("the template is of another user")
    return str(pid)


def _link(process: str, name: str) -> str:
    try:
        return os.readlink(f"/proc/{process}/{name}")
    except OSError as error:
        raise Refused("the template cannot see the command's process") from error


def _cgroup(process: str) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/cgroup").read_text(encoding="utf-8")
    return ""


def _versions() -> frozenset[str]:
    """Return the names and versions of the installed packages, and what adds to the path of modules."""
    found: set[str] = set()
    for directory in imports.installed_directories():
        with contextlib.suppress(OSError):
            names = (entry.name for entry in Path(directory).iterdir())
            found.update(name for name in names if name.endswith(("-info", ".egg-link", ".pth")))
    return frozenset(found)


def _lock(path: Path) -> int | None:
    """Return an open file that is locked while one template of a program is being made; None if another one is."""
    lock = os.open(path.with_suffix(".lock"), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        return None
    return lock


def _reason(path: Path, text: str) -> None:
    """Write why there is no template, for the next command to say: standard error is none of ours. "" takes it back."""
    with contextlib.suppress(OSError):
        if text:
            path.with_suffix(".reason").write_text(text, encoding="utf-8")
        else:
            path.with_suffix(".reason").unlink()


def _serve(plan: TemplatePlan) -> WorkerRequest | None:
    """Make the template and serve. Returns a request in a fork."""
    lock = _lock(plan.path)
    if lock is None:
        return None
    at_start = variables.given()
    plan = replace(plan, names=learned(plan), learns=None)
    if not plan.names:
        return None
    worker.set_arguments(plan.command)
    reads = variables.Reads()
    findings = import_all(plan, reads)
    if findings.blamed:
        if plan.remakes < _MOST_REMAKES:
            without = tuple(sorted({*plan.without, *findings.blamed}))
            begin_again(replace(plan, without=without, remakes=plan.remakes + 1), at_start)
        name, reason = next(iter(findings.blamed.items()))
        _reason(plan.path, f"{name} cannot be imported in advance: {reason}")
        return None
    _reason(plan.path, "")
    gc.collect()
    gc.freeze()
    template = Template(plan, at_start, reads)
    os.close(lock)
    return template.serve()


def _become(request: WorkerRequest) -> None:
    """Make this fork a worker, and run its script."""
    os.setsid()
    worker.die_with_parent(request.parent)
    worker.take_files(request.files)
    worker.set_arguments(request.command)
    worker.renew_random_numbers()
    imports.record(request.pipe)
    request.context.take()
    worker.run(request.command)


def _main() -> None:
    plan = TemplatePlan.read(sys.stdin.read())
    if AGAIN not in sys.argv and os.fork():
        os._exit(0)  # so that it is nobody's child
    try:
        request = _serve(plan)
    except Exception as error:
        _reason(plan.path, f"the template has failed: {type(error).__name__}: {error}")
        raise
    if request is not None:
        _become(request)


if __name__ == "__main__":
    _main()
