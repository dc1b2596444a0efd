"""kubeai-python: stands in place of `python` in the command of a launcher, and starts workers warm.

It asks the template of its program for a fork, passes signals on to it, and ends as it ends. Without a template it
replaces itself by python, as usual; the first such process of a host also starts the template.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import socket
import sys
import time
from pathlib import Path
from typing import NoReturn, Sequence

from kubeai.warm import messages, place, variables
from kubeai.warm.command_line import PythonCommand, parse
from kubeai.warm.plan import TemplatePlan, began, start
from kubeai.warm.worker import WorkerContext

_PASSED_ON = (
    *(signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT),
    *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGCONT),
)
_ANSWER_SECONDS = 10.0
_RETRY_SECONDS = 600.0  # after a template that could not be made
_LOCAL_RANKS = ("LOCAL_RANK", "HOROVOD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID", "MPI_LOCALRANKID")
_WORKER = Path(__file__).with_name("worker.py")


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run python's command line."""
    given = sys.argv[1:] if argv is None else list(argv)
    command = parse(given)
    where = place.directory(os.environ)
    is_possible = sys.platform.startswith("linux") and not os.isatty(0)  # a debugger needs the terminal's own process
    if command is None or not command.is_source or where is None or not is_possible:
        _run_as_usual(given)
    path = place.socket_path(where, sys.executable, command)
    connection = _connect(path)
    if connection is None:
        _start_as_usual(given, command, where)
    warm = WarmWorker(connection)
    reason = warm.start(command)
    if reason is not None:
        if _is_first_of_host():
            _log(f"starting as usual: {reason}")
        _run_as_usual(given)
    warm.end_as_it_ends()


class WarmWorker:
    """A worker that a template has forked, and this command stands for.

    Args:
        connection: To the template.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._pid: int | None = None
        self._pending: list[int] = []

    def start(self, command: PythonCommand) -> str | None:
        """Ask for the worker; returns why there is none. From then on signals are passed on to it."""
        context = WorkerContext.own()
        before = {
            number: signal.signal(number, self._pass_on) for number in _PASSED_ON if int(number) not in context.ignored
        }
        request = {"executable": sys.executable, "command": command.fields(), "context": context.fields()}
        try:
            self._connection.settimeout(_ANSWER_SECONDS)
            messages.send(self._connection, request, (0, 1, 2))
            answer, _ = messages.receive(self._connection)
            self._connection.settimeout(None)
        except (OSError, messages.Closed) as error:
            answer = {"refused": f"the template does not answer: {error}"}
        if "pid" in answer:
            self._pid = int(answer["pid"])
            for number in self._pending:
                self._pass_on(number)
            return None
        self._connection.close()
        for number, handler in before.items():
            signal.signal(number, handler)
        for number in self._pending:
            os.kill(os.getpid(), number)
        return str(answer.get("refused", "the template has not said why"))

    def _pass_on(self, number: int, _: object = None) -> None:
        if self._pid is None:
            self._pending.append(number)
        else:
            # The template keeps the number reserved while this command lives.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, number)

    def end_as_it_ends(self) -> NoReturn:
        """Wait for the end of the worker, and end with its exit code or by its signal."""
        try:
            answer, _ = messages.receive(self._connection)
            code = int(answer["code"])
        except (OSError, messages.Closed, LookupError, ValueError):
            _log("the template has ended, and the kernel has killed its workers")
            with contextlib.suppress(OSError):  # what the worker has started
                os.killpg(self._pid or os.getpid(), signal.SIGKILL)
            code = -signal.SIGKILL
        if code >= 0:
            os._exit(code)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the worker has written its own core file
        with contextlib.suppress(OSError, ValueError):  # SIGKILL has no handler
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
        os._exit(128 - code)


def _connect(path: Path) -> socket.socket | None:
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(str(path))
    except OSError:
        connection.close()
        return None
    return connection


def _start_as_usual(given: Sequence[str], command: PythonCommand, where: Path) -> NoReturn:
    """Replace this process by python, and start the template in the first process of a host."""
    if not _is_first_of_host():
        _run_as_usual(given)
    reason = place.socket_path(where, sys.executable, command).with_suffix(".reason")
    with contextlib.suppress(OSError):
        if time.time() < reason.stat().st_mtime + _RETRY_SECONDS:
            _log(f"starting as usual: {reason.read_text(encoding='utf-8')}")
            _run_as_usual(given)
    told, tells = os.pipe()
    owner = os.getppid()
    plan = TemplatePlan(sys.executable, command, str(where), owner, began(owner), learns=told)
    try:
        start(plan, variables.given()).wait()
    except OSError:
        _run_as_usual(given)
    os.close(told)
    os.set_inheritable(tells, True)  # noqa: FBT003 - takes no keyword
    program = [sys.executable, *command.options, str(_WORKER), str(tells), json.dumps(command.fields())]
    _replace_by(program)


def _run_as_usual(given: Sequence[str]) -> NoReturn:
    _replace_by([sys.executable, *given])


def _replace_by(program: list[str]) -> NoReturn:
    os.execve(sys.executable, program, variables.given())  # noqa: S606 - the user's own command


def _is_first_of_host() -> bool:
    return next((os.environ[name] for name in _LOCAL_RANKS if name in os.environ), "0") == "0"


def _log(text: str) -> None:
    with contextlib.suppress(OSError):
        os.write(2, f"kubeai-python: {text}\n".encode(errors="replace"))


if __name__ == "__main__":
    main()
