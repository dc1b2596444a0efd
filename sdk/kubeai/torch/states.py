"""The state that a training process takes from one round to the next: model and optimizer, whole or sharded."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any, Callable, Mapping, Sequence, Union

import torch  # type: ignore[import-not-found,unused-ignore]
import torch.distributed as dist  # type: ignore[import-not-found,unused-ignore]
from kubeai.elastic.integrations.torch import ShardedCheckpoints, broadcast, device_type
from torch.distributed.checkpoint import CheckpointException  # type: ignore[import-not-found,unused-ignore]
from torch.distributed.device_mesh import (  # type: ignore[import-not-found,unused-ignore]
    DeviceMesh,
    init_device_mesh,
)
from torch.nn.parallel import DistributedDataParallel  # type: ignore[import-not-found,unused-ignore]

from .decisions import NO_STATE, source_of

if TYPE_CHECKING:
    import os
    from typing import Tuple

    Build = Callable[[DeviceMesh], Tuple[torch.nn.Module, torch.optim.Optimizer]]


class Replicated:
    """Model and optimizer that are whole in each rank, as with DistributedDataParallel.

    Ranks that join get them from one that has them. Nothing is read from a checkpoint unless the whole job starts, so
    not even a loss without notice repeats a step.

    Args:
        model: Not wrapped, on the device it trains on.
        optimizer: Of the model's parameters. Its `step` uses no collective.
        save: Saves a checkpoint after so many finished steps. Called in every rank; rank 0 writes.
        load: Loads the newest checkpoint and returns its number of finished steps, 0 without one. Called in every rank.
        wrap: Returns the module that synchronises gradients, for the present process group.
        others: Whatever else has `state_dict` and `load_state_dict`, such as a learning rate scheduler.

    Attributes:
        module: The wrapped model, between `enter` and `leave`.
        optimizer: That of the model.
    """

    def __init__(  # noqa: PLR0913 - what a training consists of
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        save: Callable[[int], object],
        load: Callable[[], int],
        *,
        wrap: Callable[[torch.nn.Module], torch.nn.Module] = DistributedDataParallel,
        others: Mapping[str, Any] | None = None,
    ) -> None:
        self.module: Any = None
        self.optimizer = optimizer
        self._model = model
        self._save = save
        self._load = load
        self._wrap = wrap
        self._others = dict(others or {})
        self._buffers: list[torch.Tensor] = []

    def enter(self, steps: Sequence[int]) -> int:
        """Make all ranks of a new process group equal and wrap the model; returns the number of finished steps.

        All load a checkpoint if no rank has a state. Otherwise the rank with the most steps gives its own to all.

        Args:
            steps: For each rank the number of steps that it has finished, or `NO_STATE`.
        """
        step, source = max(steps), source_of(steps)
        if step == NO_STATE:
            step = self._load()
        elif source is not None:
            self._broadcast(source)
        self.module = self._wrap(self._model)
        return step

    def leave(self) -> None:
        """Drop the wrapper, which refers to the process group. Model and optimizer remain."""
        self.module = None
        gc.collect()  # the wrapper is part of reference cycles, which keep the group's sockets open

    def hold(self, step: int) -> None:
        """Do nothing before the next round: each rank has everything in memory."""

    def begin_step(self) -> None:
        """Copy the buffers, such as running means, which the forward pass changes, also in a step that fails."""
        self._buffers = [buffer.clone() for buffer in self._model.buffers()]

    def undo_step(self) -> None:
        """Restore the buffers. Parameters have not changed, because the optimizer's step comes last."""
        for buffer, before in zip(self._model.buffers(), self._buffers):
            buffer.copy_(before)

    def save(self, step: int) -> None:
        """Save a checkpoint. Called in every rank."""
        self._save(step)

    def _broadcast(self, source: int) -> None:
        with torch.no_grad():
            for tensor in (*self._model.parameters(), *self._model.buffers()):
                dist.broadcast(tensor, source)
        holders = {"optimizer": self.optimizer, **self._others}
        is_source = dist.get_rank() == source
        states = {name: _on_cpu(each.state_dict()) for name, each in holders.items()} if is_source else {}
        states = broadcast(states, source)
        if not is_source:
            for name, each in holders.items():
                each.load_state_dict(states[name])


class Sharded:
    """Model and optimizer of which each rank has a part, as with `fully_shard` (FSDP2).

    The parts depend on the number of ranks, so each round builds both anew and loads the newest checkpoint. Before an
    announced change all ranks save one, and no step is repeated. A loss without notice takes parts with it: the job
    goes back to its newest checkpoint, still without a restart.

    Args:
        directory: Of the checkpoints, on a file system that all hosts share.
        build: Returns the wrapped model and its optimizer, for a mesh of all ranks of the present process group.
        keep: How many checkpoints remain.

    Attributes:
        module: The wrapped model, between `enter` and `leave`.
        optimizer: That of the module, between `enter` and `leave`.
    """

    def __init__(self, directory: str | os.PathLike[str], build: Build, *, keep: int = 2) -> None:
        self.module: Any = None
        self.optimizer: Any = None
        self._directory = directory
        self._build = build
        self._keep = keep
        self._checkpoints: ShardedCheckpoints | None = None
        self._meshes = 0

    def enter(self, steps: Sequence[int]) -> int:  # noqa: ARG002 - the checkpoint says it
        """Build model and optimizer, and load the newest checkpoint."""
        # A mesh of all ranks, with a name that no earlier one has. Torch takes meshes of one name and size for the
        # same, and caches what they mean for this process, which may have had another rank in the earlier one.
        made = torch.tensor(self._meshes, device=device_type())
        dist.all_reduce(made, dist.ReduceOp.MAX)
        self._meshes = int(made) + 1
        mesh = init_device_mesh(device_type(), (dist.get_world_size(),), mesh_dim_names=(f"ranks_{self._meshes}",))
        self.module, self.optimizer = self._build(mesh)
        self._checkpoints = ShardedCheckpoints(self._directory, self.module, self.optimizer, keep=self._keep)
        return self._checkpoints.load()

    def leave(self) -> None:
        """Drop model and optimizer."""
        self.module = self.optimizer = self._checkpoints = None
        gc.collect()

    def hold(self, step: int) -> None:
        """Save the checkpoint with which the next round begins."""
        self.save(step)

    def begin_step(self) -> None:
        """Do nothing: a failed step is not repeated from here."""

    def undo_step(self) -> None:
        """Do nothing: the next round begins with a checkpoint."""

    def save(self, step: int) -> None:
        """Save a checkpoint. Called in every rank. Raises RuntimeError if a rank cannot."""
        if self._checkpoints is None:
            raise RuntimeError("there is no process group to save with")
        try:
            self._checkpoints.save(step)
        except CheckpointException as error:  # no Exception
            raise RuntimeError(f"the checkpoint of step {step}: {error}") from error


TrainedState = Union[Replicated, Sharded]


def _on_cpu(state: Any) -> Any:
    """Return a copy of nested dictionaries and lists whose tensors are in main memory."""
    if isinstance(state, torch.Tensor):
        return state.detach().cpu()
    if isinstance(state, dict):
        return {key: _on_cpu(value) for key, value in state.items()}
    if isinstance(state, (list, tuple)):
        return type(state)(_on_cpu(value) for value in state)
    return state
