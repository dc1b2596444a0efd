"""Makes a process into a worker: it runs a script or a module as python does.

    python [OPTIONS] worker.py PIPE COMMAND     a worker that is started as usual, and tells what it imports

A fork of a template becomes one, too. It takes from the command that asked for it what a started process would have
inherited: environment, working directory, open files, signals, limits and CPUs.
"""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import importlib.machinery
import io
import json
import os
import resource
import runpy
import signal
import sys
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Mapping

from kubeai.warm import imports, variables
from kubeai.warm.command_line import PythonCommand, absolute

_PR_SET_PDEATHSIG = 1
_MODULES_ARGUMENT = "-m"
_STDIO = 3


@dataclass(frozen=True)
class WorkerContext:
    """What a process inherits from the one that starts it, open files apart.

    Attributes:
        environment: All variables.
        directory: The working directory.
        mask: The file mode creation mask.
        ignored: Signals that are ignored.
        blocked: Signals that are blocked.
        cpus: The CPUs that it may use.
        limits: Soft and hard limit by number (`resource.RLIMIT_*`).
    """

    environment: dict[str, str]
    directory: str
    mask: int
    ignored: tuple[int, ...]
    blocked: tuple[int, ...]
    cpus: tuple[int, ...]
    limits: dict[int, tuple[int, int]]

    @classmethod
    def own(cls) -> WorkerContext:
        """Return that of this process. Call it in the main thread, before other threads start."""
        mask = os.umask(0o077)
        os.umask(mask)
        numbers = sorted(signal.valid_signals() - set(_OF_PYTHON))
        return cls(
            variables.given(),
            str(Path.cwd()),
            mask,
            tuple(int(number) for number in numbers if signal.getsignal(number) is signal.SIG_IGN),
            tuple(int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, ())),
            tuple(sorted(os.sched_getaffinity(0))),
            {number: resource.getrlimit(number) for number in _LIMITS},
        )

    def fields(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {**vars(self), "limits": [[number, *both] for number, both in self.limits.items()]}

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> WorkerContext:
        """Return what `fields` gave. Raises LookupError, TypeError or ValueError."""
        numbers = {name: tuple(int(one) for one in fields[name]) for name in ("ignored", "blocked", "cpus")}
        limits = {int(number): (int(soft), int(hard)) for number, soft, hard in fields["limits"]}
        return cls(dict(fields["environment"]), str(fields["directory"]), int(fields["mask"]), limits=limits, **numbers)

    def take(self) -> None:
        """Give all of it to this process, as far as it may change it."""
        for number in signal.valid_signals() - {*_FIXED, *_OF_PYTHON}:
            usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            # Another handler was installed by an import, as it would have been here.
            if signal.getsignal(number) in (usual, signal.SIG_DFL, signal.SIG_IGN):
                signal.signal(number, signal.SIG_IGN if int(number) in self.ignored else usual)
        signal.pthread_sigmask(signal.SIG_SETMASK, self.blocked)
        os.environ.clear()
        os.environ.update(self.environment)
        os.umask(self.mask)
        os.chdir(self.directory)
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, self.cpus)
        for limit, both in self.limits.items():
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(limit, both)


_OF_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)  # python ignores them in every process
_FIXED = (signal.SIGKILL, signal.SIGSTOP)
_LIMITS = tuple(sorted({number for name, number in vars(resource).items() if name.startswith("RLIMIT_")}))


def take_files(files: list[int]) -> None:
    """Make these the standard input, output and errors, and close them otherwise. Python's objects stay the same."""
    for number, file in enumerate(files[:_STDIO]):
        os.dup2(file, number)
    for file in files:
        if file >= _STDIO:
            os.close(file)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Without a buffer (-u), no line is waited for.
            stream.reconfigure(line_buffering=not stream.write_through and (stream.isatty() or stream is sys.stderr))


def die_with_parent(parent: int) -> None:
    """Let the kernel kill this process when the one that forked it ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def renew_random_numbers() -> None:
    """Seed the generators that were seeded from the system when their module was imported. `random` does it itself."""
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        numpy.seed()


def set_arguments(command: PythonCommand) -> None:
    """Set `sys.argv` and the first entry of `sys.path`, as python does."""
    sys.argv[:] = [_MODULES_ARGUMENT if command.is_module else command.shown, *command.arguments]
    target = ["-m", command.shown] if command.is_module else [command.shown]
    given: list[str] = getattr(sys, "orig_argv", [])  # since Python 3.10
    given[:] = [sys.executable, *command.options, *target, *command.arguments]
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = command.search_path


def run(command: PythonCommand) -> None:
    """Run the script or module as `__main__`. What it raises passes; a traceback begins with the script's own line."""
    main = types.ModuleType("__main__")
    vars(main).update(__builtins__=builtins)
    if sys.version_info < (3, 14):
        vars(main).update(__annotations__={})
    sys.modules["__main__"] = main  # until the process ends
    try:
        if command.is_module:
            runpy._run_module_as_main(command.target)  # type: ignore[attr-defined] # noqa: SLF001 - what `-m` calls
        else:
            _run_script(command.shown, vars(main))
    except SystemExit:
        raise
    except BaseException as error:
        traceback = error.__traceback__
        while traceback is not None and _is_ours(traceback.tb_frame.f_code.co_filename):
            traceback = traceback.tb_next
        sys.excepthook(type(error), error.with_traceback(traceback), traceback)
        sys.excepthook = lambda *_: None
        raise  # the interpreter ends as it does after this error


def _run_script(path: str, names: dict[str, Any]) -> None:
    if sys.version_info >= (3, 9):
        path = absolute(path)
    names.update(__file__=path, __cached__=None, __loader__=importlib.machinery.SourceFileLoader("__main__", path))
    with io.open_code(absolute(path)) as file:
        source = file.read()
    exec(compile(source, path, "exec", dont_inherit=True), names)  # noqa: S102 - the user's own script


def _is_ours(file: str) -> bool:
    return file == __file__ or file.endswith("runpy.py") or "<frozen runpy>" in file


def _main() -> None:
    pipe, given = int(sys.argv[1]), sys.argv[2]
    command = PythonCommand.from_fields(json.loads(given))
    set_arguments(command)
    imports.record(pipe)
    run(command)


if __name__ == "__main__":
    _main()
