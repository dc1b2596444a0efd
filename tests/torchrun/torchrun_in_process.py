"""The training script of these tests that goes on in process: DDP or FSDP2 with kubeai.torch. It records each step.

torchrun … torchrun_in_process.py WRAPPING DIRECTORY

Steps take a while until there is a file `end`.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import kubeai.elastic as kubeai
import torch
import torch.distributed as dist
from kubeai.torch.ranks import Ranks
from kubeai.torch.training import Batch, Limits, Replicated, Sharded, train
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard

from tests.testkit import torch_exit

STEPS = 1500
_SAMPLES, _GLOBAL_BATCH = 480, 24
_WRAPPING, _DIRECTORY = sys.argv[1], Path(sys.argv[2])
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
        if not (_DIRECTORY / "end").exists():
            time.sleep(_STEP_SECONDS)
        now = {"step": batch.step, "rank": dist.get_rank(), "world": dist.get_world_size(), "at": time.time()}
        self._lines.write(json.dumps({**self._known, **now}) + "\n")


def _features(index: int) -> torch.Tensor:
    return torch.randn(16, generator=torch.Generator().manual_seed(index), dtype=torch.float64)


def _build(mesh: Any = None) -> dict[str, Any]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).double()
    if _WRAPPING == "fsdp":
        fully_shard(model, mesh=mesh)
    return {"model": model, "optimizer": torch.optim.AdamW(model.parameters())}


def _build_sharded(ranks: Ranks) -> tuple[dict[str, Any], torch.nn.Module]:
    states = _build(ranks.mesh())
    return states, states["model"]


def _state() -> Any:
    if _WRAPPING == "fsdp":
        return Sharded(_DIRECTORY / "checkpoints", _build_sharded)
    path = _DIRECTORY / "checkpoint"
    states = _build()

    def save(step: int) -> None:
        if dist.get_rank() == 0:
            state = {**{name: each.state_dict() for name, each in states.items()}, "step": step}
            draft = path.with_suffix(".draft")
            torch.save(state, draft)
            draft.replace(path)

    def load() -> int:
        if not path.exists():
            return 0
        saved = torch.load(path)
        for name, each in states.items():
            each.load_state_dict(saved[name])
        return int(saved["step"])

    return Replicated(states, save, load)


def _main() -> None:
    kubeai.init(collective=_WRAPPING == "fsdp")
    state, recorder = _state(), Recorder()
    numbers = {"samples": _SAMPLES, "global_batch": _GLOBAL_BATCH, "steps": STEPS, "every": 50}
    built = train(state, recorder.backward, **numbers, backend="gloo", limits=Limits(collective=10.0))
    module = built if _WRAPPING == "fsdp" else built.module
    whole = get_model_state_dict(module, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if dist.get_rank() == 0:
        parameters = [whole[name].flatten().tolist() for name in sorted(whole)]
        (_DIRECTORY / "parameters.json").write_text(json.dumps(parameters), encoding="ascii")
    dist.destroy_process_group()


if __name__ == "__main__":
    torch_exit.run(_main)
