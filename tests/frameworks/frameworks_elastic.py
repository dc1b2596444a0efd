"""A training process of kubeai.torch: KIND is `exact`, `replicated` or `sharded`. It records what it trains on.

    … frameworks_elastic.py KIND ROOT STEPS STEP_SECONDS NAME

The test that has started it says in files when all ranks pause, and when this one makes a mistake.
"""

from typing import Any

import torch
import torch.distributed as dist
from kubeai.torch.ranks import RoundRanks
from kubeai.torch.training import Batch, Limits, Replicated, Sharded, train
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

from tests.frameworks.frameworks_member import RoundsMember, resources
from tests.frameworks.frameworks_rounds import BACKEND, DEVICE
from tests.testkit import torch_exit

_SAMPLES, _GLOBAL_BATCH = 40, 8
_ME = RoundsMember.from_arguments()


class CountingAgent(torch.nn.Module):  # type: ignore[misc]  # torch is not installed where types are checked
    """Each sample has a parameter, from which 1 is subtracted each time it is used: an exact sum."""

    def __init__(self) -> None:
        super().__init__()
        self.uses = torch.nn.Parameter(torch.zeros(_SAMPLES, dtype=torch.float64))
        self.register_buffer("calls", torch.zeros(1, dtype=torch.float64))

    def forward(self, indices: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.uses[indices]


def _backward(module: Any, batch: Batch) -> None:
    _ME.take_time()
    _ME.record(event="begin", step=batch.step, indices=batch.indices, world=dist.get_world_size())
    indices = torch.tensor(batch.indices, device=DEVICE)
    output = module(indices if _ME.kind == "exact" else _features(indices))
    (_loss(output) * batch.weight).backward()
    if _ME.is_told("backward-fails"):
        torch.zeros(2, 3) @ torch.zeros(2, 3)  # a mistake of the script
    _ME.record(event="end", step=batch.step, world=dist.get_world_size(), **resources())


def _features(indices: torch.Tensor) -> torch.Tensor:
    return torch.sin(indices[:, None] * torch.arange(1, 9, dtype=torch.float64, device=DEVICE))


def _loss(output: torch.Tensor) -> torch.Tensor:
    return output.mean() if _ME.kind == "exact" else output.square().mean()


def _build(mesh: Any = None) -> dict[str, Any]:
    torch.manual_seed(0)
    if _ME.kind == "exact":
        counting = CountingAgent().to(DEVICE)
        return {"model": counting, "optimizer": torch.optim.SGD(counting.parameters(), lr=float(_GLOBAL_BATCH))}
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)).to(
        DEVICE, torch.float64
    )
    if _ME.kind == "sharded":
        from torch.distributed.fsdp import fully_shard  # noqa: PLC0415 - the oldest torch has none

        fully_shard(model, mesh=mesh)
    return {"model": model, "optimizer": torch.optim.AdamW(model.parameters(), lr=0.01)}


def _build_sharded(ranks: RoundRanks) -> tuple[dict[str, Any], torch.nn.Module]:
    states = _build(ranks.mesh())
    return states, states["model"]


def _state() -> Any:
    if _ME.kind == "sharded":
        return Sharded(_ME.root / "checkpoints", _build_sharded)
    states = _build()

    def load() -> int:
        return 0

    def save(step: int) -> None:
        (_ME.root / f"saved-{step}").touch()
        if _ME.is_told("save-fails"):
            torch.save(states["model"].state_dict(), "/dev/full")  # as on a full disk

    return Replicated(states, save, load)


def main() -> None:
    _ME.pause_by_files()
    state = _state()
    limits = Limits(collective=10.0, holding=30.0, lost=30.0)
    built = train(
        state,
        _backward,
        samples=_SAMPLES,
        global_batch=_GLOBAL_BATCH,
        steps=_ME.steps,
        every=10,
        backend=BACKEND,
        limits=limits,
    )
    module = built if _ME.kind == "sharded" else built.module
    _ME.finish(get_model_state_dict(module, options=StateDictOptions(full_state_dict=True, cpu_offload=True)))
    dist.destroy_process_group()


if __name__ == "__main__":
    torch_exit.run(main)
