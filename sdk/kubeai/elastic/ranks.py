"""Determines rank and world size of this process repeatedly, because elastic frameworks change them at a rendezvous."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType

    from .stderr import StderrLog

_HOROVOD = ("horovod.torch", "horovod.tensorflow", "horovod.tensorflow.keras", "horovod.keras", "horovod.mxnet")


@dataclass(frozen=True)
class Number:
    """A number that frameworks know: how they call it, the variables that hold it, and its least value."""

    name: str
    torch: str
    horovod: str
    variables: tuple[str, ...]
    least: int


RANK = Number("rank", "get_rank", "rank", ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "HOROVOD_RANK"), 0)
WORLD_SIZE = Number(
    "world_size", "get_world_size", "size", ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "HOROVOD_SIZE"), 1
)


class _Source(IntEnum):
    """Sources of a number, the most trustworthy first."""

    FRAMEWORK = 0
    CALLABLE = 1
    ENVIRONMENT = 2


class NumberWatch:
    """Reads a number from frameworks that the script has loaded, a callable of the user, and the environment.

    A source that has answered once is never replaced by a weaker one. Between two rendezvous a framework briefly knows
    no number, while the environment still has the one from the start of the process.
    """

    def __init__(
        self, number: Number, modules: Mapping[str, ModuleType], environ: Mapping[str, str], stderr: StderrLog
    ) -> None:
        self.callable: Callable[[], int | None] | None = None
        self._number = number
        self._modules = modules
        self._environ = environ
        self._stderr = stderr
        self._best = _Source.ENVIRONMENT
        self._last: int | None = None

    def poll(self) -> int | None:
        """Return the present number, or the last known one. Runs user and framework code."""
        asked = {
            _Source.FRAMEWORK: self._from_framework,
            _Source.CALLABLE: self._from_callable,
            _Source.ENVIRONMENT: self._from_environment,
        }
        for source in _Source:
            value = asked[source]() if source <= self._best else None
            if value is not None:
                self._best, self._last = source, value
                break
        return self._last

    def _from_framework(self) -> int | None:
        torch = self._modules.get("torch.distributed")
        if torch is not None and is_true(torch, "is_available") and is_true(torch, "is_initialized"):
            return self._checked(ask(torch, self._number.torch))
        loaded = (self._modules.get(name) for name in _HOROVOD)
        ready = (horovod for horovod in loaded if horovod is not None and is_true(horovod, "is_initialized"))
        return next((self._checked(ask(horovod, self._number.horovod)) for horovod in ready), None)

    def _from_callable(self) -> int | None:
        if self.callable is None:
            return None
        try:
            return self._checked(self.callable())
        except Exception as error:  # noqa: BLE001 - user code may raise anything, and training must continue
            self._stderr.once(self._number.name, f"the {self._number.name} function failed: {error!r}")
            return None

    def _from_environment(self) -> int | None:
        values = (self._environ.get(name, "") for name in self._number.variables)
        return next((self._checked(int(value)) for value in values if value.isdecimal()), None)

    def _checked(self, value: Any) -> int | None:
        if value is None or isinstance(value, bool):
            return None
        try:
            number = operator.index(value)  # an int or a numpy integer
        except TypeError:
            return None
        return number if number >= self._number.least else None


class Ranks:
    """The rank of this process and the number of ranks."""

    def __init__(self, modules: Mapping[str, ModuleType], environ: Mapping[str, str], stderr: StderrLog) -> None:
        self.rank = NumberWatch(RANK, modules, environ, stderr)
        self.world_size = NumberWatch(WORLD_SIZE, modules, environ, stderr)


def is_true(module: ModuleType, name: str) -> bool:
    """Return whether a function of a framework returns something true."""
    return bool(ask(module, name))


def ask(module: ModuleType, name: str) -> Any:
    """Call a function of a framework without arguments; None if it fails."""
    try:
        return getattr(module, name)()
    except Exception:  # noqa: BLE001 - the framework may be half imported or already shut down
        return None
