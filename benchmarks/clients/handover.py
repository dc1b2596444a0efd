"""A training process of FSDP2 with AdamW, which records how long it takes from round to round.

    … handover.py KIND ROOT STEPS STEP_SECONDS NAME

KIND is `memory-MB` or `file-MB`, with the size of parameters and means in millions of bytes; with `-peak` it measures
memory, which takes time. `copies-MB` has a copy on a peer each EVERY steps, and `saved-MB` a checkpoint. The
checkpoints are in ROOT. It needs the SDK, and PyTorch.
"""

import ctypes
import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from kubeai.elastic.integrations.torch import ShardedCheckpoints
from kubeai.torch import states
from kubeai.torch.copies import CopyRing
from kubeai.torch.ranks import RoundRanks
from kubeai.torch.training import Batch, Limits, PeerCopies, Sharded, train
from torch.distributed.fsdp import fully_shard

from tests.frameworks.frameworks_member import RoundsMember
from tests.testkit import torch_exit

EVERY = 10
_LAYERS, _NUMBERS, _FLOAT_BYTES = 8, 3, 4
_ME = RoundsMember.from_arguments()
_WAY, _MILLIONS, *_PEAKS = _ME.kind.split("-")
_WIDTH = int((int(_MILLIONS) * 1e6 / _LAYERS / _NUMBERS / _FLOAT_BYTES) ** 0.5)


def _timed(holder: Any, name: str) -> None:
    """Record how long each call of a function takes."""
    call = getattr(holder, name)

    def timed(*args: Any, **kwargs: Any) -> Any:
        begun = time.monotonic()
        result = call(*args, **kwargs)
        _ME.record(event="moved", what=name, seconds=time.monotonic() - begun)
        return result

    setattr(holder, name, timed)


_MMAP_THRESHOLD, _MMAP_BYTES = -3, 1 << 17
"""Each tensor is then given back as soon as it is freed. Otherwise the allocator keeps more than is to be measured."""


class _Peak:
    """Measures how much more memory this process has at most during a change than before it."""

    def __init__(self) -> None:
        self._before: int | None = None

    def begin(self) -> None:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # VmHWM is what is resident from now on
        self._before = _resident("VmRSS")

    def end(self) -> None:
        if self._before is not None:
            _ME.record(event="peak", bytes=_resident("VmHWM") - self._before)
            self._before = None


def _resident(name: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


_PEAK = _Peak()


def _measured_from_here(prepared: Any) -> Any:
    def begun(*args: Any, **kwargs: Any) -> Any:
        _PEAK.begin()
        return prepared(*args, **kwargs)

    return begun


def _count(messages: list[Any]) -> Any:
    sent = sum(each.tensor.numel() for each in messages if each.op is dist.isend)
    _ME.record(event="sent", bytes=sent)
    return _POST(messages)


_POST = dist.batch_isend_irecv
_step: int | None = None


def _build(ranks: RoundRanks) -> tuple[dict[str, Any], torch.nn.Module]:
    with torch.device("meta"):
        model = torch.nn.Sequential(*(torch.nn.Linear(_WIDTH, _WIDTH, bias=False) for _ in range(_LAYERS)))
    mesh = ranks.mesh()
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    model.to_empty(device="cpu")
    if ranks.step == 0:
        for parameter in model.parameters():
            torch.nn.init.constant_(parameter.to_local().detach(), 1e-4)
    optimizer = torch.optim.AdamW(model.parameters())
    optimizer.register_step_post_hook(_note_step)
    return {"model": model, "optimizer": optimizer}, model


def _backward(module: Any, batch: Batch) -> None:
    if _ME.is_told(f"dies-in-step-{batch.step}"):
        os.kill(os.getpid(), signal.SIGKILL)
    _PEAK.end()
    _ME.take_time()
    global _step  # noqa: PLW0603 - the hook is called with the optimizer alone
    _step = batch.step
    _ME.record(event="begin", step=batch.step)
    module(torch.ones(1, _WIDTH)).sum().backward()


def _note_step(*_: object) -> None:
    global _step  # noqa: PLW0603 - as above
    if _step is not None:  # to load a checkpoint, torch makes a step that changes nothing
        _ME.record(event="end", step=_step)
        _step = None


def main() -> None:
    _ME.pause_by_files()
    for name in ("prepared", "give", "whole", "spread"):
        _timed(states, name)
    if _PEAKS:
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, _MMAP_BYTES)
        vars(states).update(prepared=_measured_from_here(vars(states)["prepared"]))
    for name in ("save", "load"):
        _timed(ShardedCheckpoints, name)
    _timed(CopyRing, "take")
    dist.batch_isend_irecv = _count
    train(
        Sharded(_ME.root / "checkpoints", _build, copies=PeerCopies(every=EVERY) if _WAY == "copies" else None),
        _backward,
        samples=40,
        global_batch=12,
        steps=_ME.steps,
        every=EVERY if _WAY == "saved" else None,
        backend="gloo",
        limits=Limits(handing=0.0 if _WAY == "file" else 10.0),
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    torch_exit.run(main)
