"""Ranks wait for one another in a store, and tell each other their ports."""

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest
from kubeai.torch.decisions import NotFormed
from kubeai.torch.ranks_in_store import await_all, ports_of_all

_SIZE = 3


@dataclass
class _Store:
    """As TCPStore."""

    counts: Counter[str] = field(default_factory=Counter)
    values: dict[str, str] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, key: str, amount: int) -> int:
        with self._lock:
            self.counts[key] += amount
            return self.counts[key]

    def set(self, key: str, value: str) -> None:
        self.values[key] = value

    def multi_get(self, keys: list[str]) -> list[bytes]:
        return [self.values[key].encode() for key in keys]


def test_each_rank_learns_the_ports_of_all() -> None:
    store = _Store()
    told = [ports_of_all(store, rank, _SIZE, is_over=lambda: False) for rank in range(_SIZE)]
    with ThreadPoolExecutor(_SIZE) as pool:
        found = list(pool.map(lambda rank: told[rank]([] if rank == 1 else [100 + rank, 200]), range(_SIZE)))
    assert found == [{100, 102, 200}] * _SIZE


@pytest.mark.parametrize("is_over", [True, False])
def test_nobody_waits_for_ever(is_over: bool) -> None:  # noqa: FBT001
    store = _Store()
    with pytest.raises(NotFormed, match="a newer round" if is_over else "not all ranks"):
        await_all(store, "arrived", _SIZE, seconds=60.0 if is_over else 0.0, is_over=lambda: is_over)
    assert store.counts["arrived"] == 1
