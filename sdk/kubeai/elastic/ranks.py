"""Determines rank and world size of this process repeatedly, because elastic frameworks change them at a rendezvous."""

from __future__ import annotations

import json
import operator
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType

    from .threads import StderrLog

_MAX_DIGITS = 16  # Python refuses to parse thousands of digits
_JAX = "jax._src.distributed"
_TENSORFLOW_KINDS = ("chief", "master", "worker", "ps", "evaluator")
_TENSORFLOW_RANKS = 3  # of these kinds
_HOROVOD = ("horovod.torch", "horovod.tensorflow", "horovod.tensorflow.keras", "horovod.keras", "horovod.mxnet")


@dataclass(frozen=True)
class Number:
    """The rank or the world size: its name in each framework, the variables that hold it, and its least value."""

    name: str
    torch: str
    horovod: str
    jax: str
    variables: tuple[str, ...]
    placed: Callable[[Mapping[str, str]], int | None]
    least: int


def _placed_rank(environ: Mapping[str, str]) -> int | None:
    """Return the place that a scheduler or controller gives, if it starts one process in each of its tasks or pods.

    SLURM_PROCID is also set for the script of a whole batch job, where it is 0 and tells nothing. Only a step of `srun`
    has SLURM_STEP_NUM_TASKS; with a single task, the step may be a launcher that starts the ranks itself.
    """
    if (_whole(environ, "SLURM_STEP_NUM_TASKS") or 0) > 1:
        return _whole(environ, "SLURM_PROCID")
    if environ.get("TF_CONFIG"):
        return _tensorflow_place(environ["TF_CONFIG"])[0]
    return _whole(environ, "JOB_COMPLETION_INDEX")


def _placed_world_size(environ: Mapping[str, str]) -> int | None:
    tasks = _whole(environ, "SLURM_STEP_NUM_TASKS") or 0
    return tasks if tasks > 1 else _tensorflow_place(environ.get("TF_CONFIG", ""))[1]


def _tensorflow_place(config: str) -> tuple[int | None, int | None]:
    """Return rank and world size from TF_CONFIG, None where they are unknown.

    The chief or master comes first and the workers follow, as in TensorFlow. Parameter servers and evaluators are no
    ranks and get the numbers after them. A job with dynamic workers lists only the process's own address, as an object:
    such a worker cannot tell whether there is a chief.
    """
    try:
        fields = json.loads(config)
        hosts = [fields["cluster"].get(kind, []) for kind in _TENSORFLOW_KINDS]
        at, index = _TENSORFLOW_KINDS.index(fields["task"]["type"]), operator.index(fields["task"]["index"])
        if not all(isinstance(each, list) for each in hosts):
            return (index if at == 0 else None), None
        return sum(map(len, hosts[:at])) + index, sum(map(len, hosts[:_TENSORFLOW_RANKS]))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None, None


def _whole(environ: Mapping[str, str], name: str) -> int | None:
    value = environ.get(name, "")
    return int(value) if value.isdecimal() and len(value) <= _MAX_DIGITS else None


RANK = Number(
    "rank",
    "get_rank",
    "rank",
    "process_id",
    ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "HOROVOD_RANK", "JAX_PROCESS_ID"),
    _placed_rank,
    0,
)
WORLD_SIZE = Number(
    "world_size",
    "get_world_size",
    "size",
    "num_processes",
    ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "HOROVOD_SIZE", "JAX_NUM_PROCESSES"),
    _placed_world_size,
    1,
)


class _NumberSource(IntEnum):
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
        self._best = _NumberSource.ENVIRONMENT
        self._last: int | None = None

    def poll(self) -> int | None:
        """Return the present number, or the last known one. Runs user and framework code."""
        asked = (self._from_framework, self._from_callable, self._from_environment)
        for source, ask_source in zip(_NumberSource, asked):
            value = ask_source() if source <= self._best else None
            if value is not None:
                self._best, self._last = source, value
                break
        return self._last

    def _from_framework(self) -> int | None:
        torch = self._modules.get("torch.distributed")
        if torch is not None and ask(torch, "is_available") and ask(torch, "is_initialized"):
            return self._checked(ask(torch, self._number.torch))
        loaded = (self._modules.get(name) for name in _HOROVOD)
        ready = (horovod for horovod in loaded if horovod is not None and ask(horovod, "is_initialized"))
        found = next((self._checked(ask(horovod, self._number.horovod)) for horovod in ready), None)
        if found is not None:
            return found
        # What `jax.distributed.initialize` has been told. `jax.process_index()` would start the accelerators.
        state = getattr(self._modules.get(_JAX), "global_state", None)
        if getattr(state, "client", None) is None:
            return None
        return self._checked(getattr(state, self._number.jax, None))

    def _from_callable(self) -> int | None:
        if self.callable is None:
            return None
        try:
            return self._checked(self.callable())
        except Exception as error:  # noqa: BLE001 - user code may raise anything, and training must continue
            self._stderr.once(self._number.name, f"the {self._number.name} function failed: {error!r}")
            return None

    def _from_environment(self) -> int | None:
        values = (_whole(self._environ, name) for name in self._number.variables)
        found = next((self._checked(value) for value in values if value is not None), None)
        if found is not None:
            return found
        # A script that was started with multiprocessing has siblings with the same environment.
        multiprocessing = self._modules.get("multiprocessing")
        if multiprocessing is not None and ask(multiprocessing, "parent_process") is not None:
            return None
        return self._checked(self._number.placed(self._environ))

    def _checked(self, value: Any) -> int | None:
        if value is None or isinstance(value, bool):
            return None
        try:
            number = operator.index(value)  # an int or a numpy integer
        except TypeError:
            return None
        return number if number >= self._number.least else None


def ask(module: ModuleType, name: str) -> Any:
    """Call a function of a framework without arguments; None if it fails."""
    try:
        return getattr(module, name)()
    except Exception:  # noqa: BLE001 - the framework may be half imported or already shut down
        return None
