"""The training script of these tests: DDP or FSDP2, in restart mode. It records each of its steps.

torchrun … torchrun_training.py WRAPPING DIRECTORY

A step's batch is the same in every world: each rank takes its share of it. So parameters after the same steps are the
same, whatever happened to the job in between. Training ends at the step that the file `end` names.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kubeai.elastic as kubeai
import torch
import torch.distributed as dist
from kubeai.elastic.integrations.torch import ShardedCheckpoints
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from tests.testkit import torch_exit

# Divisible by every number of ranks from one to four hosts with two processes each.
_BATCH = 24
_EVERY = 50
_BACKEND = os.environ.get("TORCHRUN_BACKEND", "gloo")


class ReplicatedModel:
    """DDP, whose checkpoint rank 0 writes alone."""

    def __init__(self, directory: Path, model: torch.nn.Module, device: torch.device) -> None:
        self._path = directory / "checkpoint"
        self._inner = model
        self._device = device
        self.model: torch.nn.Module = DistributedDataParallel(model)
        self.optimizer = torch.optim.AdamW(model.parameters())

    def load(self) -> int:
        if not self._path.exists():
            return 0
        saved = torch.load(self._path, map_location=self._device)
        self._inner.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        return int(saved["step"])

    def save(self, step: int) -> None:
        """Write to a draft and rename it, so that a kill leaves the old checkpoint."""
        if dist.get_rank() == 0:
            state = {"model": self._inner.state_dict(), "optimizer": self.optimizer.state_dict(), "step": step}
            draft = self._path.with_suffix(".draft")
            torch.save(state, draft)
            draft.replace(self._path)


class ShardedModel:
    """FSDP2, whose checkpoint all ranks write together."""

    def __init__(self, directory: Path, model: torch.nn.Module, device: torch.device) -> None:
        fully_shard(model, mesh=init_device_mesh(device.type, (dist.get_world_size(),)))
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters())
        self._checkpoints = ShardedCheckpoints(str(directory / "checkpoints"), model, self.optimizer)

    def load(self) -> int:
        return int(self._checkpoints.load())

    def save(self, step: int) -> None:
        self._checkpoints.save(step)


def _device() -> torch.device:
    if _BACKEND != "nccl":
        return torch.device("cpu")
    # This machine plays all hosts, node1 and so on, and no two processes may use one GPU.
    host, processes = int(os.environ.get("KUBEAI_HOST", "node1")[4:]) - 1, int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    device = torch.device("cuda", host * processes + int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    return device


def _model(device: torch.device) -> torch.nn.Module:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    return model.to(device=device, dtype=torch.float64)


def _batches_from(first: int, directory: Path, device: torch.device) -> Iterator[torch.Tensor]:
    """Yield this rank's share of each batch, up to the last one."""
    end, step = directory / "end", first
    while not (end.exists() and step >= int(end.read_text())):
        whole = torch.randn(_BATCH, 16, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
        yield whole[dist.get_rank() :: dist.get_world_size()].to(device)
        step += 1


def _whole(model: torch.nn.Module) -> list[list[float]]:
    """Return all parameters. Every rank has to call it."""
    parameters: list[Any] = list(model.parameters())
    full = [one.full_tensor() if hasattr(one, "full_tensor") else one for one in parameters]
    return [one.detach().flatten().tolist() for one in full]


def recorder(directory: Path) -> Callable[[int], None]:
    """Return what appends a line for a finished step."""
    host = os.environ.get("KUBEAI_HOST", "alone")
    lines = (directory / f"steps-{host}-{os.getpid()}.jsonl").open("a", encoding="ascii", buffering=1)
    known = {
        "host": host,
        "pid": os.getpid(),
        "run": int(os.environ.get("KUBEAI_RUN", "0")),
        "restarts": int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")),
    }

    def record(step: int) -> None:
        now = {"step": step, "rank": dist.get_rank(), "world": dist.get_world_size(), "at": time.time()}
        lines.write(json.dumps({**known, **now}) + "\n")

    return record


def _main(wrapping: str, directory: Path) -> None:
    device = _device()
    dist.init_process_group(_BACKEND)
    kubeai.init(collective=wrapping == "fsdp")
    training = (ShardedModel if wrapping == "fsdp" else ReplicatedModel)(directory, _model(device), device)
    record, first = recorder(directory), training.load()
    seconds = float(os.environ.get("TORCHRUN_STEP_SECONDS", "0"))
    for step, batch in kubeai.steps(_batches_from(first, directory, device), training.save, first=first, every=_EVERY):
        training.model(batch).square().mean().backward()
        training.optimizer.step()
        training.optimizer.zero_grad()
        time.sleep(seconds)
        record(step)
    parameters = _whole(training.model)
    if dist.get_rank() == 0:
        (directory / "parameters.json").write_text(json.dumps(parameters), encoding="ascii")
    dist.destroy_process_group()


if __name__ == "__main__":
    torch_exit.run(lambda: _main(sys.argv[1], Path(sys.argv[2])))
