"""Detection of the process rank."""

from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest
from kubeai.elastic.ranks import RANK, WORLD_SIZE, NumberWatch
from kubeai.elastic.stderr import StderrLog


class Framework:
    """A loaded framework: torch.distributed and horovod spell the same things differently."""

    def __init__(self, rank: int | None) -> None:
        self.current = rank

    def torch(self) -> ModuleType:
        return _module(is_available=lambda: True, is_initialized=lambda: self.current is not None, get_rank=self._rank)

    def horovod(self) -> ModuleType:
        return _module(is_initialized=lambda: self.current is not None, rank=self._rank)

    def _rank(self) -> int:
        if self.current is None:
            raise ValueError("not initialised")
        return self.current


def _module(**functions: Any) -> ModuleType:
    return cast("ModuleType", SimpleNamespace(**functions))


def _watch(modules: dict[str, ModuleType], environ: dict[str, str] | None = None) -> NumberWatch:
    return NumberWatch(RANK, modules, environ or {}, StderrLog())


def _torch(rank: int | None) -> dict[str, ModuleType]:
    return {"torch.distributed": Framework(rank).torch()}


def _horovod(rank: int | None) -> dict[str, ModuleType]:
    return {"horovod.torch": Framework(rank).horovod()}


def _says(rank: Any) -> Any:
    return lambda: rank


def test_a_loaded_framework_is_believed_first() -> None:
    """Before the callable and the environment, since only it follows a re-rendezvous by itself."""
    for modules in (_torch(3), _horovod(3), {**_torch(None), **_horovod(3)}):
        watch = _watch(modules, {"RANK": "1"})
        watch.callable = _says(2)
        assert watch.poll() == 3


def test_the_callable_comes_before_the_environment() -> None:
    watch = _watch(_torch(None), {"RANK": "1"})
    assert watch.poll() == 1
    watch.callable = _says(2)
    assert watch.poll() == 2


@pytest.mark.parametrize("name", ["RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "HOROVOD_RANK"])
def test_each_variable_of_a_launcher_is_known(name: str) -> None:
    assert _watch({}, {name: "5"}).poll() == 5
    assert _watch({}, {name: "five"}).poll() is None


def test_nobody_knows() -> None:
    assert _watch({}).poll() is None


def test_every_look_asks_anew() -> None:
    framework = Framework(1)
    watch = _watch({"horovod.tensorflow": framework.horovod()})
    assert watch.poll() == 1
    framework.current = 0
    assert watch.poll() == 0


def test_between_two_rendezvous_the_last_rank_stands() -> None:
    """The environment names the rank of the process's birth and must not come back."""
    framework = Framework(4)
    watch = _watch({"horovod.torch": framework.horovod()}, {"HOROVOD_RANK": "7"})
    assert watch.poll() == 4
    framework.current = None
    assert watch.poll() == 4
    framework.current = 2
    assert watch.poll() == 2


def test_a_framework_that_raises_does_not_know() -> None:
    def boom() -> Any:
        raise RuntimeError("shut down")

    broken = {"torch.distributed": _module(), "horovod.torch": _module(is_initialized=_says(rank=True), rank=boom)}
    assert _watch(broken, {"RANK": "1"}).poll() == 1


@pytest.mark.parametrize("answer", [-1, True, "3", 1.5, None])
def test_an_answer_that_is_no_rank_is_no_answer(answer: Any) -> None:
    """As torch says -1 for a process outside the group."""
    watch = _watch({}, {"RANK": "6"})
    watch.callable = _says(answer)
    assert watch.poll() == 6


def test_a_failing_callable_is_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    watch = _watch({})
    watch.callable = lambda: 1 // 0
    assert [watch.poll() for _ in range(3)] == [None, None, None]
    assert capfd.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("name", ["WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "HOROVOD_SIZE"])
def test_the_number_of_ranks_is_read_likewise(name: str) -> None:
    """First the framework, then the callable, then the environment. 0 and -1 are no number of ranks."""
    modules = {"torch.distributed": _module(is_available=_says(rank=True), is_initialized=_says(rank=False))}
    watch = NumberWatch(WORLD_SIZE, modules, {name: "5"}, StderrLog())
    assert watch.poll() == 5
    watch.callable = _says(0)
    assert watch.poll() == 5
    watch.callable = _says(6)
    assert watch.poll() == 6
    modules["torch.distributed"] = _module(
        is_available=_says(rank=True), is_initialized=_says(rank=True), get_world_size=_says(7)
    )
    assert watch.poll() == 7
