"""The training script of these tests that goes on in process: with kubeai.torch, and records each step.

torchrun … torchrun_in_process.py WRAPPING DIRECTORY

WRAPPING is `ddp`, `late` (DDP that connects only when a round begins), `fsdp` (FSDP2), `copies` (FSDP2 with copies on
peers) or `own`: DDP in a loop of its own, with workers that read the data, accumulation, clipping and dropout. Steps
take a while until there is a file `end`.
"""

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kubeai.elastic as kubeai
import torch
import torch.distributed as dist
from kubeai.torch.decisions import RoundFile
from kubeai.torch.loop import ElasticLoop, Limits, PeerCopies, RankLost, Replicated, RoundRanks, Sharded
from kubeai.torch.sampler import StepSampler
from kubeai.torch.training import Batch, train
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from tests.testkit import torch_exit

STEPS = 1500
EVERY = 50
"""How many steps there are between two checkpoints, all of which remain."""
_SAMPLES, _GLOBAL_BATCH = 480, 24
_WRAPPING, _DIRECTORY = sys.argv[1], Path(sys.argv[2])
_IS_SHARDED = _WRAPPING in {"fsdp", "copies"}
_COPIES = PeerCopies(every=5) if _WRAPPING == "copies" else None
_DROPOUT = 0.2 if _WRAPPING == "own" else 0.0
_STEP_SECONDS = float(os.environ.get("TORCHRUN_STEP_SECONDS", "0"))


class Recorder:
    """Appends a line for each step of this process."""

    def __init__(self) -> None:
        host = os.environ.get("KUBEAI_HOST", "alone")
        self._lines = (_DIRECTORY / f"steps-{host}-{os.getpid()}.jsonl").open("a", encoding="ascii", buffering=1)
        run, restarts = os.environ.get("KUBEAI_RUN", "0"), os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        self._known = {"host": host, "pid": os.getpid(), "run": int(run), "restarts": int(restarts)}

    def backward(self, module: Any, batch: Batch) -> None:
        features = torch.stack([_features(index) for index in batch.indices])
        (module(features).square().mean() * batch.weight).backward()
        self.end_step(batch.step)

    def end_step(self, step: int) -> None:
        """Note that this step is nearly finished, after the time that it takes."""
        if not (_DIRECTORY / "end").exists():
            time.sleep(_STEP_SECONDS)
        now = {"step": step, "rank": dist.get_rank(), "world": dist.get_world_size(), "at": time.time()}
        self._lines.write(json.dumps({**self._known, **now}) + "\n")


def _features(index: int) -> torch.Tensor:
    return torch.randn(16, generator=torch.Generator().manual_seed(index), dtype=torch.float64)


class _Corpus(Dataset[torch.Tensor]):  # type: ignore[misc]  # torch is not installed where types are checked
    def __len__(self) -> int:
        return _SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        return _features(index)


def _build(mesh: Any = None) -> dict[str, Any]:
    torch.manual_seed(0)
    layers = torch.nn.Linear(16, 8), torch.nn.Tanh(), torch.nn.Dropout(_DROPOUT), torch.nn.Linear(8, 1)
    model = torch.nn.Sequential(*layers).double()
    if _IS_SHARDED:
        fully_shard(model, mesh=mesh)
    return {"model": model, "optimizer": torch.optim.AdamW(model.parameters())}


def _build_sharded(ranks: RoundRanks) -> tuple[dict[str, Any], torch.nn.Module]:
    states = _build(ranks.mesh())
    return states, states["model"]


def _replicated(states: dict[str, Any], build: Callable[[RoundRanks], Any] | None = None) -> Replicated[Any]:
    path = _DIRECTORY / "checkpoint"

    def save(step: int) -> None:
        if dist.get_rank() == 0:
            draft = path.with_suffix(".draft")
            torch.save({**{name: each.state_dict() for name, each in states.items()}, "step": step}, draft)
            draft.replace(path)

    def load() -> int:
        if not path.exists():
            return 0
        saved = torch.load(path)
        for name, each in states.items():
            each.load_state_dict(saved[name])
        return int(saved["step"])

    return Replicated(states, save, load, build=build)


def _train_in_own_loop(recorder: Recorder, limits: Limits) -> Any:
    states, sampler = _build(), StepSampler(_SAMPLES, _GLOBAL_BATCH, micro_batch=1)
    loader = DataLoader(_Corpus(), batch_sampler=sampler, num_workers=1, persistent_workers=True)

    def build(ranks: RoundRanks) -> Any:
        sampler.begin(ranks.step, ranks.rank, ranks.size)
        return DistributedDataParallel(states["model"]), iter(loader)

    loop = ElasticLoop(_replicated(states, build), backend="gloo", limits=limits)
    for step, (wrapped, batches) in loop.steps(STEPS, every=EVERY):
        with contextlib.suppress(RankLost), loop.attempt():
            states["optimizer"].zero_grad()
            for number in range(sampler.share.steps):
                torch.manual_seed(1000 * step + sampler.share.first + number)
                is_last = number == sampler.share.steps - 1
                with contextlib.nullcontext() if is_last else wrapped.no_sync():
                    (wrapped(next(batches)).square().mean() * sampler.share.loss_scale).backward()
            torch.nn.utils.clip_grad_norm_(wrapped.parameters(), 0.5)
            recorder.end_step(step)
            states["optimizer"].step()
    return wrapped


def _train(recorder: Recorder, limits: Limits) -> Any:
    if _WRAPPING == "own":
        return _train_in_own_loop(recorder, limits)
    sharded = Sharded(_DIRECTORY / "checkpoints", _build_sharded, keep=STEPS, copies=_COPIES)
    state: Any = sharded if _IS_SHARDED else _replicated(_build())
    numbers = {"samples": _SAMPLES, "global_batch": _GLOBAL_BATCH, "steps": STEPS, "every": EVERY}
    return train(state, recorder.backward, **numbers, backend="gloo", limits=limits)


def _main() -> None:
    if _WRAPPING == "late":
        setattr(RoundFile, "following", lambda _: None)  # noqa: B010 - a method of a class
    kubeai.init()
    built = _train(Recorder(), Limits(collective=10.0))
    module = built if _IS_SHARDED else built.module
    whole = get_model_state_dict(module, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if dist.get_rank() == 0:
        parameters = [whole[name].flatten().tolist() for name in sorted(whole)]
        (_DIRECTORY / "parameters.json").write_text(json.dumps(parameters), encoding="ascii")
    dist.destroy_process_group()


if __name__ == "__main__":
    torch_exit.run(_main)
