"""What a script imports: as its source says, and while it runs. Only installed modules are imported in advance.

The user's own modules always run in the worker: they may have been edited, and are where a rank is read, a file opened
or a seed chosen.
"""

from __future__ import annotations

import ast
import contextlib
import fcntl
import importlib
import importlib.util
import os
import site
import sys
import sysconfig
from pathlib import Path
from typing import Any, Iterator, Sequence

_LONGEST_SOURCE = 4 << 20

_LATER = {
    "torch": ("torch.distributed", "torch.nn.parallel", "torch.utils.data", "torch._dynamo", "torch.distributed.fsdp")
}
"""What libraries import by themselves, when they are first used."""


def of_command(target: str, *, is_module: bool) -> list[str]:
    """Return the names that a script or module imports, as its source says. Empty if that cannot be read."""
    path: str | None = target
    if is_module:
        with contextlib.suppress(ImportError, ValueError):
            found = importlib.util.find_spec(target)
            if found is not None and found.submodule_search_locations is not None:
                found = importlib.util.find_spec(f"{target}.__main__")
            path = found.origin if found is not None else None
    try:
        with Path(path or "").open("rb") as file:
            return of_source(file.read(_LONGEST_SOURCE))
    except OSError:
        return []


def of_source(source: bytes) -> list[str]:
    """Return the names that a module imports when it is executed, but not in its functions, in their order.

    `from a import b` gives `a` and `a.b`, which may be a module.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return []
    names: list[str] = []
    for node in _executed(tree):
        if isinstance(node, ast.Import):
            names.extend(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.append(node.module)
            names.extend(f"{node.module}.{alias.name}" for alias in node.names if alias.name != "*")
    tops = {name.partition(".")[0] for name in names}
    names.extend(later for top in sorted(tops) for later in _LATER.get(top, ()))
    return list(dict.fromkeys(names))


def _executed(node: ast.AST) -> Iterator[ast.AST]:
    """Return the statements that are executed when a module is."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            continue
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            continue
        yield child
        yield from _executed(child)


class Recorder:
    """A finder that finds nothing, and writes the name of each module that is imported to a pipe.

    It is asked only for modules that are not loaded. It never blocks, and stops for good when the pipe is closed, or
    when something else has its number.

    Args:
        pipe: The descriptor of its end for writing.
    """

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe
        self._inode = os.fstat(pipe).st_ino
        fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_NONBLOCK)
        fcntl.fcntl(pipe, fcntl.F_SETFD, fcntl.FD_CLOEXEC)

    def find_spec(self, name: str, *_: Any) -> None:
        """Write a name."""
        try:
            if self._pipe >= 0 and os.fstat(self._pipe).st_ino == self._inode:
                os.write(self._pipe, f"{name}\n".encode())
                return
        except BlockingIOError:
            return
        except (OSError, UnicodeEncodeError):
            pass
        self._pipe = -1


def record(pipe: int) -> None:
    """Write the names of all modules that this process imports from now on to a pipe."""
    sys.meta_path.insert(0, Recorder(pipe))


def installed_directories() -> tuple[str, ...]:
    """Return where the standard library and installed packages are."""
    paths = sysconfig.get_paths()
    found = [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    with contextlib.suppress(AttributeError):  # some virtual environments have a `site` of their own
        found += [*site.getsitepackages(), site.getusersitepackages()]
    return tuple(dict.fromkeys(os.path.realpath(path) for path in found))


def is_installed(name: str, directories: Sequence[str]) -> bool:
    """Return whether a module is of the standard library or of an installed package, and not one of the user's own."""
    top = name.partition(".")[0]
    if top in ("kubeai", "__main__", "__mp_main__"):
        return False
    try:
        found = importlib.util.find_spec(top)
    except (ImportError, ValueError, AttributeError):
        return False
    if found is None:
        return False
    if found.origin in ("built-in", "frozen"):
        return True
    places = list(found.submodule_search_locations or ([found.origin] if found.origin else []))
    return bool(places) and all(_is_below(os.path.realpath(place), directories) for place in places)


def _is_below(path: str, directories: Sequence[str]) -> bool:
    return any(path.startswith(directory + os.sep) for directory in directories)


def load(name: str) -> None:
    """Import a module, or get an attribute of one that imports it lazily. What fails here will fail in the worker."""
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        parent, _, attribute = name.rpartition(".")
        with contextlib.suppress(Exception):
            getattr(sys.modules.get(parent), attribute, None)
    except (Exception, SystemExit):  # noqa: BLE001, S110 - whatever it is, the script may expect it
        pass
