"""Parses the command line of python: which script or module runs, with which options of the interpreter. Pure."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Mapping, Sequence

# Others change where modules come from, or run no script: with them, and with what is unknown, python runs as usual.
_FLAGS = frozenset("bBdOqRsuv")
_ARCHIVES = (".pyz", ".pyzw", ".zip", ".pyc")
_WITH_VALUE = frozenset("WX")


@dataclass(frozen=True)
class PythonCommand:
    """What python is to run.

    Attributes:
        options: Of the interpreter, as they were given.
        target: The absolute path of a script, or the name of a module.
        shown: The target as it was given.
        arguments: Of the script.
        is_module: Whether the target is a module (`-m`).
    """

    options: tuple[str, ...]
    target: str
    shown: str
    arguments: tuple[str, ...]
    is_module: bool

    @property
    def is_source(self) -> bool:
        """Whether it is a module or a file of source code: neither an archive nor a directory nor missing."""
        return self.is_module or (Path(self.target).is_file() and not self.target.endswith(_ARCHIVES))

    @property
    def search_path(self) -> str:
        """The directory that python puts first into `sys.path`."""
        return str(Path.cwd() if self.is_module else Path(os.path.realpath(self.target)).parent)

    @property
    def program(self) -> tuple[tuple[str, ...], str, bool]:
        """What two starts of one program have in common."""
        return self.options, self.target, self.is_module

    def fields(self) -> dict[str, Any]:
        """Return the command as JSON."""
        return {**vars(self), "options": list(self.options), "arguments": list(self.arguments)}

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> PythonCommand:
        """Return the command that `fields` gave. Raises LookupError or TypeError."""
        return cls(
            tuple(fields["options"]),
            fields["target"],
            fields["shown"],
            tuple(fields["arguments"]),
            bool(fields["is_module"]),
        )


def parse(argv: Sequence[str]) -> PythonCommand | None:
    """Return what these arguments of python run; None if that is no script or module, or an option is unknown."""
    given = list(argv)
    options: list[str] = []
    while given:
        one = given.pop(0)
        if one == "-m" or (one.startswith("-m") and not one.startswith("--")):
            name = one[2:] or (given.pop(0) if given else "")
            return PythonCommand(tuple(options), name, name, tuple(given), is_module=True) if name else None
        if not one.startswith("-"):
            return PythonCommand(tuple(options), absolute(one), one, tuple(given), is_module=False)
        if one[1:2] and one[1] in _WITH_VALUE:
            options.append(one)
            if not one[2:]:
                if not given:
                    return None
                options.append(given.pop(0))
        elif one[1:] and set(one[1:]) <= _FLAGS:
            options.append(one)
        else:
            return None
    return None


def absolute(path: str) -> str:
    """Return a path behind the working directory, links and dots as they are: as python does, which opens it so."""
    return os.path.join(Path.cwd(), path)  # noqa: PTH118 - pathlib removes dots
