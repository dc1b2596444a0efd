"""Variables of the environment: which ones imports have read, and which ones two processes must have in common."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView

if TYPE_CHECKING:
    from types import FrameType

_PER_PROCESS = frozenset(
    {
        *(f"{of}RANK" for of in ("", "LOCAL_", "GROUP_", "ROLE_", "NODE_", "CROSS_", "JSM_NAMESPACE_")),
        *(f"{of}WORLD_SIZE" for of in ("", "LOCAL_", "GROUP_", "ROLE_")),
        *("MASTER_ADDR", "MASTER_PORT", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID"),
    }
)
_PER_PROCESS_PREFIXES = ("TORCHELASTIC_", "HOROVOD_", "OMPI_COMM_WORLD_", "PMI_", "PMIX_")

_NATIVE_PREFIXES = (
    *("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "GOTO_", "BLIS_", "VECLIB_", "NUMEXPR_"),
    *("LD_", "MALLOC_", "GLIBC_", "PYTHON", "LC_", "LANG", "TZ"),
    *("PYTORCH_", "TORCH_CPP_", "C10_", "CUDA_", "TF_", "XLA_", "JAX_"),
)
_READ_LATE = frozenset({"CUDA_VISIBLE_DEVICES"})  # by the driver, when a process first uses a GPU


def is_per_process(name: str) -> bool:
    """Return whether a launcher gives each process, or each round, a value of its own."""
    return name in _PER_PROCESS or name.startswith(_PER_PROCESS_PREFIXES)


def is_native(name: str) -> bool:
    """Return whether a library or the interpreter reads a variable while it is loaded, unseen by `watched`."""
    return name.startswith(_NATIVE_PREFIXES) and name not in _READ_LATE


def given() -> dict[str, str]:
    """Return the variables of this process as it was given them: in the C locale, python adds one to its own."""
    variables = dict(os.environ)
    with contextlib.suppress(OSError), Path("/proc/self/environ").open("rb") as file:
        if not any(variable.startswith(b"LC_CTYPE=") for variable in file.read().split(b"\0")):
            variables.pop("LC_CTYPE", None)
    return variables


class Reads:
    """Which variables were read, and the modules whose import that was part of. A copy of all reads none of them.

    Attributes:
        by: For each variable the modules that were being imported when it was read first.
    """

    def __init__(self) -> None:
        self.by: dict[str, tuple[str, ...]] = {}
        self._new: list[str] = []
        self._copies: set[str] = set()
        self._copying: int | None = None

    def begin_copy(self, names: Iterable[str], frame: FrameType) -> None:
        """Note that the code of this frame is about to read all variables once."""
        self._copies, self._copying = set(names), id(frame)

    def note(self, name: str, frame: FrameType | None) -> None:
        """Note a read by the code of this frame."""
        if id(frame) == self._copying and name in self._copies:
            self._copies.discard(name)
        elif name not in self.by:
            self.by[name] = _imported_in(frame)
            self._new.append(name)

    def take_new(self) -> list[str]:
        """Return the variables that were read first since the last call."""
        new, self._new = self._new, []
        return new


def _imported_in(frame: FrameType | None) -> tuple[str, ...]:
    """Return the modules whose code is being executed, the innermost first."""
    found = []
    while frame is not None:
        if frame.f_code.co_name == "<module>":
            found.append(str(frame.f_globals.get("__name__", "")))
        frame = frame.f_back
    return tuple(found)


@contextlib.contextmanager
def watched(reads: Reads) -> Iterator[None]:
    """Note which variables Python code reads through `os.environ` and `os.getenv` meanwhile."""
    plain = type(os.environ)

    class WatchedEnviron(plain):  # type: ignore[valid-type,misc]
        def __getitem__(self, name: str) -> str:
            reads.note(name, sys._getframe(1))  # noqa: SLF001 - the frame of who reads
            return str(super().__getitem__(name))

        def copy(self) -> dict[str, str]:
            return {name: plain.__getitem__(self, name) for name in self}

        def items(self) -> ItemsView[str, str]:
            return self.copy().items()

        def values(self) -> ValuesView[str]:
            return self.copy().values()

        def keys(self) -> KeysView[str]:
            reads.begin_copy(self, sys._getframe(1))  # noqa: SLF001 - dict(os.environ) asks for the keys first
            return KeysView(self)

    os.environ.__class__ = WatchedEnviron  # other modules have this object already
    try:
        yield
    finally:
        os.environ.__class__ = plain


def difference(ours: Mapping[str, str], theirs: Mapping[str, str], reads: Reads) -> str | None:
    """Return a variable that imports have read, or may have read, and that differs; None if there is none."""
    for name in sorted({*reads.by, *filter(is_native, {*ours, *theirs})}):
        if ours.get(name) != theirs.get(name):
            return name
    return None
