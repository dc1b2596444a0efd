"""The ranks settle an agreement among themselves, through the store of torch.distributed."""

import threading
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest
from kubeai.elastic import agreement
from kubeai.elastic.agreement import StoreArbiter
from kubeai.elastic.testing import FakeSupervisor

from tests.sdk.sdk_scripts import Start


class CompareSetStore:
    """A store as torch's: the expected value "" stands for a key that does not exist."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        if self.values.get(key, b"").decode() == expected:
            self.values[key] = desired.encode()
        return self.values.get(key, expected.encode())


def _modules(store: Any, *, initialized: bool = True) -> dict[str, ModuleType]:
    torch = SimpleNamespace(is_available=lambda: True, is_initialized=lambda: initialized)
    inner = SimpleNamespace(_get_default_store=lambda: store)
    return cast("dict[str, ModuleType]", {"torch.distributed": torch, "torch.distributed.distributed_c10d": inner})


@pytest.mark.parametrize("first", [True, False])
def test_the_first_rank_decides_for_all(first: bool) -> None:  # noqa: FBT001
    store = CompareSetStore()
    ranks = [StoreArbiter(_modules(store)) for _ in range(3)]
    proposals = [first, not first, not first]
    outcomes = [rank.settle(2, 7, go_through=mine) for rank, mine in zip(ranks, proposals, strict=True)]
    assert outcomes == [first] * 3
    assert list(store.values) == ["kubeai/2/7"]


def test_each_epoch_is_settled_on_its_own() -> None:
    rank = StoreArbiter(_modules(CompareSetStore()))
    assert rank.settle(2, 7, go_through=False) is False
    assert rank.settle(2, 8, go_through=True) is True


def test_without_a_store_there_is_no_outcome() -> None:
    """Torch is not loaded, not initialised, without that function, or its store is gone."""

    def fail(*_: str) -> bytes:
        raise RuntimeError("connection reset")

    bare = _modules(None)
    del bare["torch.distributed.distributed_c10d"]
    broken = _modules(SimpleNamespace(compare_set=fail))
    for modules in ({}, bare, _modules(CompareSetStore(), initialized=False), _modules(None), broken):
        assert StoreArbiter(modules).settle(1, 1, go_through=True) is None


def test_a_store_that_does_not_answer_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreement, "_STORE_SECONDS", 0.05)
    answered = threading.Event()
    store = SimpleNamespace(compare_set=lambda *_: b"stop" if answered.wait(60) else b"go")
    assert StoreArbiter(_modules(store)).settle(1, 1, go_through=True) is None
    answered.set()
    for thread in threading.enumerate():
        if thread.name == "kubeai-settle":
            thread.join(60)


@pytest.mark.parametrize(("wrote", "stops"), [("go", False), ("stop", True), (None, True)])
def test_a_committed_rank_follows_the_store(
    supervisor: FakeSupervisor,
    start: Start,
    wrote: str | None,
    stops: bool,  # noqa: FBT001
) -> None:
    """Another rank may have waited in vain for the commit and gone on. Nobody else having written, it stops."""
    step = _run(supervisor, start, wrote)
    supervisor.commit(1, step)
    answer = "reached" if stops else "passed"
    supervisor.wait_for(lambda: answer in [each["answer"] for each in supervisor.answers_of(1).values()])


@pytest.mark.parametrize(("wrote", "stops"), [("go", False), ("stop", True), (None, False)])
def test_a_rank_that_is_cut_off_from_the_commit_follows_the_store(
    supervisor: FakeSupervisor,
    start: Start,
    wrote: str | None,
    stops: bool,  # noqa: FBT001
) -> None:
    """Another rank that knows the commit may have stopped already."""
    _run(supervisor, start, wrote)
    answer = "reached" if stops else "passed"
    supervisor.wait_for(lambda: answer in [each["answer"] for each in supervisor.answers_of(1).values()])


def _run(supervisor: FakeSupervisor, start: Start, wrote: str | None) -> int:
    """Start a rank beside another one that has written this, propose a step to it, and return that step."""
    script = start(
        """
        import os, sys, time, types
        import kubeai.elastic as kubeai

        class Store:
            value = os.environ["WROTE"]
            def compare_set(self, key, expected, desired):
                self.value = self.value or desired
                return self.value.encode()

        torch = types.ModuleType("torch.distributed")
        torch.is_available = torch.is_initialized = lambda: True
        torch.get_rank, torch.get_world_size = lambda: 0, lambda: 1
        inner = types.ModuleType("torch.distributed.distributed_c10d")
        store = Store()
        inner._get_default_store = lambda: store
        sys.modules[torch.__name__], sys.modules[inner.__name__] = torch, inner
        kubeai.init(collective=True)
        step = 0
        while not kubeai.should_stop(step):
            step += 1
            print(f"step {step}.")
            time.sleep(0.02)
        print("stops at", step)
        """,
        WROTE=wrote or "",
        KUBEAI_EXIT_HOLD="2",
    )
    script.wait_for_line("step 3.")
    step = script.out.read_text().count("step ") + 20
    supervisor.propose(1, step)
    supervisor.wait_for(lambda: supervisor.answers_of(1))
    return step
