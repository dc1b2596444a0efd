"""A training process of FSDP2 with AdamW, dropout and a schedule. It records what it sends at a change of rounds.

    … frameworks_handover.py KIND ROOT STEPS STEP_SECONDS NAME

KIND is `memory`, or `file`: then the state goes through checkpoints, or `otherwise`: then two ranks divide it in
another way. `copies-K` has a copy each K steps instead of checkpoints, and `saved-K` a checkpoint each K steps. The
test that has started it says in files when all ranks pause, and before which message, or in which step, this process
kills itself.
"""

import gc
import os
import signal
from typing import Any

import torch
import torch.distributed as dist
from kubeai.torch.ranks import RoundRanks
from kubeai.torch.training import Batch, Limits, PeerCopies, Sharded, train
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard

from tests.frameworks.frameworks_member import RoundsMember, resources
from tests.testkit import torch_exit

_ME = RoundsMember.from_arguments()
FEATURES, HIDDEN = 32, 3002
"""So many rows are not divided evenly among 3 or 4 ranks."""
_WAY, _, _NUMBER = _ME.kind.partition("-")
EVERY = {"copies": 1000, "saved": int(_NUMBER or "0")}.get(_WAY, 10)
"""How many steps there are between two checkpoints."""
_SAMPLES, _GLOBAL_BATCH = 40, 12
_PROBE_BYTES = 1 << 20


class _Messages:
    """Posts one message after the other and counts them, without those that measure the network."""

    def __init__(self) -> None:
        self._post = dist.batch_isend_irecv
        self._posts = 0
        dist.batch_isend_irecv = self

    def __call__(self, messages: list[Any]) -> list[Any]:
        return [work for message in messages for work in self._posted(message)]

    def _posted(self, message: Any) -> list[Any]:
        if message.tensor.numel() != _PROBE_BYTES:
            if _ME.is_told(f"dies-at-{self._posts}"):
                os.kill(os.getpid(), signal.SIGKILL)
            self._posts += 1
            _ME.record(event="sent", bytes=message.tensor.numel() if message.op is dist.isend else 0)
        works: list[Any] = self._post([message])
        return works


class _RecordedParts(Sharded[torch.nn.Module]):
    def save(self, step: int) -> None:
        super().save(step)
        _ME.record(event="saved", step=step)


class _Counted(torch.nn.Module):  # type: ignore[misc]  # torch is not installed where types are checked
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1, dtype=torch.float64))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return values + self.calls / 1000


def _build(ranks: RoundRanks) -> tuple[dict[str, Any], torch.nn.Module]:
    torch.manual_seed(0)
    layers = torch.nn.Linear(FEATURES, HIDDEN), torch.nn.Tanh(), torch.nn.Dropout(0.2), torch.nn.Linear(HIDDEN, 1)
    model = torch.nn.Sequential(*layers[:1], _Counted(), *layers[1:]).double()
    is_otherwise = _ME.kind == "otherwise" and ranks.size == 2
    mesh = ranks.mesh(replicate=1, shard=-1) if is_otherwise else ranks.mesh()
    fully_shard(model[0], mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=_ME.steps)
    optimizer.register_step_post_hook(lambda *_: scheduler.step())
    return {"model": model, "optimizer": optimizer, "scheduler": scheduler}, model


def _tensor_bytes() -> int:
    """How many bytes the tensors have that Python knows, but for those from before the training."""
    plain = [each for each in gc.get_objects() if type(each) in (torch.Tensor, torch.nn.Parameter)]
    return sum({each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in plain}.values())


def _backward(module: Any, batch: Batch) -> None:
    for what, number in (("dies", signal.SIGKILL), ("freezes", signal.SIGSTOP)):
        if _ME.is_told(f"{what}-in-step-{batch.step}"):
            os.kill(os.getpid(), number)
    _ME.take_time()
    features = torch.sin(torch.tensor(batch.indices)[:, None] * torch.arange(1, FEATURES + 1, dtype=torch.float64))
    loss = module(features).square().mean() * batch.weight
    loss.backward()
    found = {**resources(), "tensors": _tensor_bytes()}
    _ME.record(event="end", step=batch.step, world=dist.get_world_size(), loss=loss.item().hex(), **found)


def main() -> None:
    _ME.pause_by_files()
    _Messages()
    built = train(
        _RecordedParts(
            _ME.root / "checkpoints", _build, copies=PeerCopies(every=int(_NUMBER)) if _WAY == "copies" else None
        ),
        _backward,
        samples=_SAMPLES,
        global_batch=_GLOBAL_BATCH,
        steps=_ME.steps,
        every=EVERY,
        backend="gloo",
        limits=Limits(collective=10.0, handing=0.0 if _ME.kind == "file" else 10.0, holding=30.0, lost=30.0),
    )
    _ME.finish(get_model_state_dict(built, options=StateDictOptions(full_state_dict=True, cpu_offload=True)))
    dist.destroy_process_group()


if __name__ == "__main__":
    torch_exit.run(main)
