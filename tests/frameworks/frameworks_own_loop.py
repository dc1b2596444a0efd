"""A training script with a loop of its own, and with what many of them have.

    … frameworks_own_loop.py KIND ROOT STEPS STEP_SECONDS NAME

It has workers that read data, autocast, a gradient scaler, accumulation, clipping, dropout, two optimizers, a schedule,
evaluations, and a norm of all ranks as for a log. KIND is `whole` (64-bit numbers), `mixed` (autocast) or `parts`
(FSDP2). The test that has started it says in files when all ranks pause, and where this process ends itself or makes a
mistake.
"""

import contextlib
import multiprocessing
import os
import signal
from typing import Any

import torch
import torch.distributed as dist
from kubeai.torch.loop import ElasticLoop, Limits, RankLost, Replicated, RoundRanks, Sharded
from kubeai.torch.sampler import StepSampler
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from tests.frameworks.frameworks_member import RoundsMember
from tests.frameworks.frameworks_rounds import BACKEND, DEVICE
from tests.testkit import torch_exit

_SAMPLES, _GLOBAL_BATCH, _MICRO_BATCH = 44, 16, 2
_EVALUATE_EVERY = 7
_CLIP = 2.0
"""Of the norms of these steps, some are above it and some below."""
_ME = RoundsMember.from_arguments()
_NUMBER = torch.float32 if _ME.kind == "mixed" else torch.float64


class _Corpus(Dataset[torch.Tensor]):  # type: ignore[misc]  # torch is not installed where types are checked
    def __len__(self) -> int:
        return _SAMPLES

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor, torch.Tensor]:
        return index, torch.sin((index + 1) * torch.arange(1, 9, dtype=_NUMBER)), torch.tensor(index % 5, dtype=_NUMBER)


class _Seen:
    """How many samples the training has seen, which a step counts before its collectives."""

    def __init__(self) -> None:
        self.samples = 0

    def state_dict(self) -> dict[str, int]:
        return {"samples": self.samples}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.samples = state["samples"]


def _die_at(place: str) -> None:
    if _ME.is_told(f"dies-at-{place}"):
        for worker in multiprocessing.active_children():  # one that does not see that this process is gone
            os.kill(worker.pid or 0, signal.SIGSTOP)
            (_ME.root / f"frozen-{worker.pid}").touch()
        os.kill(os.getpid(), signal.SIGKILL)


def _model() -> torch.nn.Module:
    torch.manual_seed(0)
    layers = torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Dropout(0.2), torch.nn.Linear(16, 1)
    return torch.nn.Sequential(*layers).to(DEVICE, _NUMBER)


def _states(model: torch.nn.Module) -> dict[str, Any]:
    """Two optimizers, as for layers of two kinds."""
    first, last = model[0], model[3]
    optimizer = torch.optim.AdamW(first.parameters(), lr=0.01)
    other = torch.optim.SGD(last.parameters(), lr=0.01, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=_ME.steps)
    scaler = torch.amp.GradScaler(DEVICE, init_scale=2.0**10, growth_interval=20)
    return {
        "model": model,
        "optimizer": optimizer,
        "other": other,
        "scheduler": scheduler,
        "scaler": scaler,
        "seen": _Seen(),
    }


def _state(sampler: StepSampler) -> Any:
    loader = DataLoader(_Corpus(), batch_sampler=sampler, num_workers=1, persistent_workers=True)

    def batches(ranks: RoundRanks) -> Any:
        sampler.begin(ranks.step, ranks.rank, ranks.size)
        return iter(loader)

    if _ME.kind == "parts":
        from torch.distributed.fsdp import fully_shard  # noqa: PLC0415 - the oldest torch has none

        def build_parts(ranks: RoundRanks) -> Any:
            model = _model()
            fully_shard(model, mesh=ranks.mesh(replicate=-1, shard=1 if ranks.size % 2 else 2))
            states = _states(model)
            del states["scaler"]  # it has no collective for parts on CPU
            return states, (model, states, batches(ranks))

        return Sharded(_ME.root / "checkpoints", build_parts)
    model = _model()
    states = _states(model)
    return Replicated(
        states, _save, lambda: 0, build=lambda ranks: (DistributedDataParallel(model), states, batches(ranks))
    )


def _save(step: int) -> None:
    (_ME.root / f"saved-{step}").touch()


def _train(loop: ElasticLoop[Any], sampler: StepSampler) -> torch.nn.Module:
    for step, (wrapped, states, batches) in loop.steps(_ME.steps, every=25):
        _ME.take_time()
        try:
            with loop.attempt():
                if step % _EVALUATE_EVERY == 0:
                    _ME.record(event="evaluated", step=step, loss=_evaluate(wrapped))
                losses, used = _step(step, wrapped, states, batches, sampler)
        except RankLost as error:
            _ME.record(event="lost", step=step, error=str(error.__cause__), kept=type(wrapped).__name__)
            continue
        seen = states["seen"].samples
        _ME.record(event="end", step=step, world=dist.get_world_size(), indices=used, losses=losses, seen=seen)
        if step == _ME.steps - 1:
            _die_at("end")
    return wrapped


def _evaluate(wrapped: Any) -> float:
    wrapped.eval()
    with torch.no_grad():
        loss = wrapped(torch.stack([_Corpus()[index][1] for index in range(4)]).to(DEVICE)).mean()
    wrapped.train()
    dist.all_reduce(loss)
    return float(loss.item() / dist.get_world_size())


def _step(
    step: int, wrapped: Any, states: dict[str, Any], batches: Any, sampler: StepSampler
) -> tuple[list[float], list[int]]:
    scaler: Any = states.get("scaler")
    optimizers = states["optimizer"], states["other"]
    losses, used = [], []
    states["seen"].samples += _GLOBAL_BATCH
    for number in range(sampler.share.steps):
        indices, features, targets = next(batches)
        torch.manual_seed(1000 * step + sampler.share.first + number)  # dropout of a micro-batch, whoever computes it
        is_last = number == sampler.share.steps - 1
        with (
            _synchronised(wrapped, is_last=is_last),
            torch.autocast(DEVICE, torch.bfloat16, enabled=_ME.kind == "mixed"),
        ):
            loss = (wrapped(features.to(DEVICE)).squeeze(1) - targets.to(DEVICE)).square().mean()
            scaled = loss * sampler.share.loss_scale
            (scaler.scale(scaled) if scaler else scaled).backward()
        losses.append(loss.item())
        used += indices.tolist()
    if _ME.is_told("backward-fails"):
        torch.zeros(2, 3) @ torch.zeros(2, 3)  # a mistake of the script
    for each in optimizers if scaler else ():
        scaler.unscale_(each)
    norm = torch.nn.utils.clip_grad_norm_(wrapped.parameters(), _CLIP)
    _die_at("norm")
    if _ME.kind != "parts":
        dist.all_reduce(norm)  # as for a log
    for each in optimizers:
        scaler.step(each) if scaler else each.step()
        each.zero_grad()
    if scaler:
        scaler.update()
    states["scheduler"].step()
    return losses, used


def _synchronised(wrapped: Any, *, is_last: bool) -> Any:
    if _ME.kind == "parts":
        wrapped.set_requires_gradient_sync(is_last)
        return contextlib.nullcontext()
    return contextlib.nullcontext() if is_last else wrapped.no_sync()


def main() -> None:
    _ME.pause_by_files()
    sampler = StepSampler(_SAMPLES, _GLOBAL_BATCH, _MICRO_BATCH)
    limits = Limits(collective=60.0, holding=30.0, lost=30.0)
    wrapped = _train(ElasticLoop(_state(sampler), backend=BACKEND, limits=limits), sampler)
    module = wrapped if _ME.kind == "parts" else wrapped.module
    whole = get_model_state_dict(module, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    _ME.finish(whole)
    dist.destroy_process_group()


if __name__ == "__main__":
    torch_exit.run(main)
