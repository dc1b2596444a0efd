"""Settles between the ranks themselves whether they stop at an agreed step.

A rank that is cut off from the supervisor between a commit and its step does not know the commit, and would go on while
the others save and wait for it. The store of torch.distributed connects the ranks without the supervisor: the first
of them to write decides for all.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from .ranks import ask, is_true

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType

_SECONDS = 2.0  # a store whose host is gone may not answer for minutes


class Arbiter:
    """Uses the default store of torch.distributed, if the script has initialised that. It imports nothing."""

    def __init__(self, modules: Mapping[str, ModuleType]) -> None:
        self._modules = modules

    def settle(self, run: int, epoch: int, *, go_through: bool) -> bool | None:
        """Propose an outcome for an epoch and return the one that holds for all ranks; None without a usable store.

        Waits for at most 2 s.
        """
        store = self._store()
        if store is None:
            return None
        outcomes: list[bool] = []
        proposed = "stop" if go_through else "go"

        def write() -> None:
            try:
                outcomes.append(_text(store.compare_set(f"kubeai/{run}/{epoch}", "", proposed)) == "stop")
            except Exception:  # noqa: BLE001 - a framework may raise anything; without a store the rank decides alone
                outcomes.clear()

        # Another thread, because the call cannot be interrupted.
        thread = threading.Thread(target=write, name="kubeai-settle", daemon=True)
        thread.start()
        thread.join(_SECONDS)
        return outcomes[0] if outcomes else None

    def _store(self) -> Any:
        torch = self._modules.get("torch.distributed")
        inner = self._modules.get("torch.distributed.distributed_c10d")
        if torch is None or inner is None or not is_true(torch, "is_available") or not is_true(torch, "is_initialized"):
            return None
        return ask(inner, "_get_default_store")


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
