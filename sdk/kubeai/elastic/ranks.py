"""Determines the rank of this process repeatedly, because elastic frameworks change it at every rendezvous."""

from __future__ import annotations

import operator
from enum import IntEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType

    from .stderr import StderrLog

_HOROVOD = ("horovod.torch", "horovod.tensorflow", "horovod.tensorflow.keras", "horovod.keras", "horovod.mxnet")
_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "HOROVOD_RANK")


class _Source(IntEnum):
    """Sources of the rank, the most trustworthy first."""

    FRAMEWORK = 0
    CALLABLE = 1
    ENVIRONMENT = 2


class RankWatch:
    """Reads the rank from frameworks that the script has loaded, a callable of the user, and the environment.

    A source that has answered once is never replaced by a weaker one. Between two rendezvous a framework briefly knows
    no
    rank, while the environment still has the rank from the start of the process.
    """

    def __init__(self, modules: Mapping[str, ModuleType], environ: Mapping[str, str], stderr: StderrLog) -> None:
        self.callable: Callable[[], int | None] | None = None
        self._modules = modules
        self._environ = environ
        self._stderr = stderr
        self._best = _Source.ENVIRONMENT
        self._rank: int | None = None

    def poll(self) -> int | None:
        """Return the present rank, or the last known one. Runs user and framework code."""
        asked = {
            _Source.FRAMEWORK: self._from_framework,
            _Source.CALLABLE: self._from_callable,
            _Source.ENVIRONMENT: self._from_environment,
        }
        for source in _Source:
            rank = asked[source]() if source <= self._best else None
            if rank is not None:
                self._best, self._rank = source, rank
                break
        return self._rank

    def _from_framework(self) -> int | None:
        torch = self._modules.get("torch.distributed")
        if torch is not None and _is_true(torch, "is_available") and _is_true(torch, "is_initialized"):
            return _rank(_ask(torch, "get_rank"))
        loaded = (self._modules.get(name) for name in _HOROVOD)
        ready = (horovod for horovod in loaded if horovod is not None and _is_true(horovod, "is_initialized"))
        return next((_rank(_ask(horovod, "rank")) for horovod in ready), None)

    def _from_callable(self) -> int | None:
        if self.callable is None:
            return None
        try:
            return _rank(self.callable())
        except Exception as error:  # noqa: BLE001 - user code may raise anything, and training must continue
            self._stderr.once("rank", f"the rank function failed: {error!r}")
            return None

    def _from_environment(self) -> int | None:
        values = (self._environ.get(name, "") for name in _VARIABLES)
        return next((int(value) for value in values if value.isdecimal()), None)


def _is_true(module: ModuleType, name: str) -> bool:
    return bool(_ask(module, name))


def _ask(module: ModuleType, name: str) -> Any:
    try:
        return getattr(module, name)()
    except Exception:  # noqa: BLE001 - the framework may be half imported or already shut down
        return None


def _rank(value: Any) -> int | None:
    if value is None or isinstance(value, bool):
        return None
    try:
        rank = operator.index(value)  # an int or a numpy integer
    except TypeError:
        return None
    return rank if rank >= 0 else None
