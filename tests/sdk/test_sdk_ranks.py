"""Detection of the process rank."""

import json
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest
from kubeai.elastic.ranks import RANK, WORLD_SIZE, NumberWatch
from kubeai.elastic.threads import StderrLog


class FakeFramework:
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
    return {"torch.distributed": FakeFramework(rank).torch()}


def _horovod(rank: int | None) -> dict[str, ModuleType]:
    return {"horovod.torch": FakeFramework(rank).horovod()}


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


@pytest.mark.parametrize("name", ["RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "HOROVOD_RANK", "JAX_PROCESS_ID"])
def test_each_variable_of_a_launcher_is_known(name: str) -> None:
    assert _watch({}, {name: "5"}).poll() == 5
    assert _watch({}, {name: "five"}).poll() is None


def test_nobody_knows() -> None:
    assert _watch({}).poll() is None


def test_every_look_asks_anew() -> None:
    framework = FakeFramework(1)
    watch = _watch({"horovod.tensorflow": framework.horovod()})
    assert watch.poll() == 1
    framework.current = 0
    assert watch.poll() == 0


def test_between_two_rendezvous_the_last_rank_stands() -> None:
    """The environment names the rank of the process's birth and must not come back."""
    framework = FakeFramework(4)
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


def _both(environ: dict[str, str], modules: dict[str, ModuleType] | None = None) -> tuple[int | None, int | None]:
    """Rank and number of ranks in an environment."""
    watches = [NumberWatch(number, modules or {}, environ, StderrLog()) for number in (RANK, WORLD_SIZE)]
    return watches[0].poll(), watches[1].poll()


def _tf_config(kind: str, index: int, **cluster: Any) -> dict[str, str]:
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})}


def test_jax_is_asked_once_its_processes_are_connected() -> None:
    """The state of jax.distributed is read; asking jax itself would start the accelerators."""
    state = SimpleNamespace(client=None, process_id=0, num_processes=1)
    modules = {"jax._src.distributed": _module(global_state=state)}
    assert _both({}, modules) == (None, None)
    state.client, state.process_id, state.num_processes = object(), 2, 4
    assert _both({"RANK": "1", "WORLD_SIZE": "9"}, modules) == (2, 4)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "8"}, (3, 8)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, (None, None)),
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}, (None, None)),
        ({"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "8", "RANK": "1", "WORLD_SIZE": "2"}, (1, 2)),
        ({"JOB_COMPLETION_INDEX": "3"}, (3, None)),
        ({"JOB_COMPLETION_INDEX": "1" * 5000}, (None, None)),
        (_tf_config("chief", 0, chief=["a"], worker=["b", "c"], ps=["d"]), (0, 3)),
        (_tf_config("master", 0, master=["a"], worker=["b", "c"]), (0, 3)),
        (_tf_config("worker", 1, chief=["a"], worker=["b", "c"], ps=["d"]), (2, 3)),
        (_tf_config("worker", 0, worker=["b", "c"]), (0, 2)),
        (_tf_config("ps", 0, worker=["b", "c"], ps=["d"]), (2, 2)),
        (_tf_config("evaluator", 0, chief=["a"], worker=["b", "c"]), (3, 3)),
        (_tf_config("worker", 0, worker={"0": "b"}, ps=["d"]), (None, None)),
        (_tf_config("worker", 0), (0, None)),
        (_tf_config("tpu", 0, tpu=["a"]), (None, None)),
        ({"TF_CONFIG": "[" * 100_000}, (None, None)),
        ({"TF_CONFIG": "[]", "JOB_COMPLETION_INDEX": "0"}, (None, None)),
    ],
)
def test_the_place_that_a_scheduler_or_controller_gives_is_a_rank(
    environ: dict[str, str], expected: tuple[int | None, int | None]
) -> None:
    """Only where it is the place of one process: not in a batch script, nor where there may be a chief beside it."""
    assert _both(environ) == expected


def test_processes_that_a_script_starts_have_no_place_of_their_own() -> None:
    """Those of multiprocessing have the environment of the one that started them; all would be rank 0."""
    child = {"multiprocessing": _module(parent_process=object)}
    assert _both({"JOB_COMPLETION_INDEX": "0"}, child) == (None, None)
    assert _both({"JOB_COMPLETION_INDEX": "0"}, {"multiprocessing": _module(parent_process=lambda: None)}) == (0, None)


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
