"""A training process of kubeai.torch: KIND is `exact`, `replicated` or `sharded`. It records what it trains on.

    … frameworks_elastic.py KIND ROOT STEPS STEP_SECONDS NAME

The test that has started it says in files when all ranks pause, and when this one makes a mistake.
"""

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from kubeai.torch.ranks import Ranks
from kubeai.torch.training import Batch, Limits, Replicated, Sharded, train
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard

from tests.frameworks.frameworks_gate import FileGate
from tests.testkit import torch_exit

_SAMPLES, _GLOBAL_BATCH = 40, 8
_KIND, _ROOT, _STEPS, _STEP_SECONDS, _NAME = (
    sys.argv[1],
    Path(sys.argv[2]),
    int(sys.argv[3]),
    float(sys.argv[4]),
    sys.argv[5],
)


class CountingAgent(torch.nn.Module):  # type: ignore[misc]  # torch is not installed where types are checked
    """Each sample has a parameter, from which 1 is subtracted each time it is used: an exact sum."""

    def __init__(self) -> None:
        super().__init__()
        self.uses = torch.nn.Parameter(torch.zeros(_SAMPLES, dtype=torch.float64))
        self.register_buffer("calls", torch.zeros(1, dtype=torch.float64))

    def forward(self, indices: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.uses[indices]


class Recorded:
    """The recorder of one process."""

    def __init__(self) -> None:
        self._lines = (_ROOT / f"steps-{_NAME}.jsonl").open("a", encoding="ascii", buffering=1)

    def backward(self, module: Any, batch: Batch) -> None:
        time.sleep(_STEP_SECONDS)
        self._write(event="begin", step=batch.step, indices=batch.indices, world=dist.get_world_size())
        indices = torch.tensor(batch.indices)
        output = module(indices if _KIND == "exact" else _features(indices))
        (_loss(output) * batch.weight).backward()
        if (_ROOT / f"backward-fails-{_NAME}").exists():
            torch.zeros(2, 3) @ torch.zeros(2, 3)  # a mistake of the script
        self._write(event="end", step=batch.step, world=dist.get_world_size(), **_resources())

    def finish(self, parameters: dict[str, torch.Tensor]) -> None:
        exact = {name: [each.hex() for each in value.flatten().tolist()] for name, value in parameters.items()}
        self._write(event="finished", parameters=exact)

    def _write(self, **fields: Any) -> None:
        self._lines.write(json.dumps({"at": time.time(), **fields}) + "\n")


def _resources() -> dict[str, int]:
    resident = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    threads = len(list(Path("/proc/self/task").iterdir()))
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    return {"descriptors": descriptors, "threads": threads, "python": threading.active_count(), "resident": resident}


def _features(indices: torch.Tensor) -> torch.Tensor:
    return torch.sin(indices[:, None] * torch.arange(1, 9, dtype=torch.float64))


def _loss(output: torch.Tensor) -> torch.Tensor:
    return output.mean() if _KIND == "exact" else output.square().mean()


def _build(mesh: Any = None) -> dict[str, Any]:
    torch.manual_seed(0)
    if _KIND == "exact":
        counting = CountingAgent()
        return {"model": counting, "optimizer": torch.optim.SGD(counting.parameters(), lr=float(_GLOBAL_BATCH))}
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)).double()
    if _KIND == "sharded":
        fully_shard(model, mesh=mesh)
    return {"model": model, "optimizer": torch.optim.AdamW(model.parameters(), lr=0.01)}


def _build_sharded(ranks: Ranks) -> tuple[dict[str, Any], torch.nn.Module]:
    states = _build(ranks.mesh())
    return states, states["model"]


def _state() -> Any:
    if _KIND == "sharded":
        return Sharded(_ROOT / "checkpoints", _build_sharded)
    states = _build()

    def load() -> int:
        return 0

    def save(step: int) -> None:
        (_ROOT / f"saved-{step}").touch()
        if (_ROOT / f"save-fails-{_NAME}").exists():
            torch.save(states["model"].state_dict(), "/dev/full")  # as on a full disk

    return Replicated(states, save, load)


def main() -> None:
    FileGate(_ROOT, _NAME).install()
    state, recorded = _state(), Recorded()
    limits = Limits(collective=10.0, holding=30.0, lost=30.0)
    built = train(
        state,
        recorded.backward,
        samples=_SAMPLES,
        global_batch=_GLOBAL_BATCH,
        steps=_STEPS,
        every=10,
        backend="gloo",
        limits=limits,
    )
    module = built if _KIND == "sharded" else built.module
    recorded.finish(get_model_state_dict(module, options=StateDictOptions(full_state_dict=True, cpu_offload=True)))
    dist.destroy_process_group()


if __name__ == "__main__":
    torch_exit.run(main)
