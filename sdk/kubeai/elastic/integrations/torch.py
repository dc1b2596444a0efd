"""Checkpoints of PyTorch training that all ranks write together: FSDP2, or DDP, also with ZeroRedundancyOptimizer.

    from kubeai.elastic.integrations.torch import ShardedCheckpoints

    kubeai.init(collective=True)
    checkpoints = ShardedCheckpoints("/checkpoints/resnet", model, optimizer)
    first = checkpoints.load()
    for step, batch in kubeai.steps(batches_from(first), checkpoints.save, first=first):
        train(batch)

torch.distributed.checkpoint writes them, and can load them. A checkpoint has its name only once it is complete. An
incomplete one is never loaded, and the next save removes it. With the parameters, each rank saves the state of its
random number generators, so that training continues exactly if the batches are the same.
"""

from __future__ import annotations

import contextlib
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Iterable, Iterator, Mapping, TypeVar

import torch  # type: ignore[import-not-found,unused-ignore]
import torch.distributed as dist  # type: ignore[import-not-found,unused-ignore]
import torch.distributed.checkpoint as dcp  # type: ignore[import-not-found,unused-ignore]
from torch.distributed.checkpoint import CheckpointException  # type: ignore[import-not-found,unused-ignore]
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict  # type: ignore[import-not-found,unused-ignore]

from .background import BackgroundSave
from .encoding import decoded, encoded
from .random_state import encoded_random_state, seed_anew, set_encoded_random_state
from .zero import is_zero, part_of_zero, zero_optimizers

if TYPE_CHECKING:
    import os

T = TypeVar("T")

_NAME = "step-{:012d}"
_COMPLETE = re.compile(r"step-(\d{12,})")
_DRAFT = ".incomplete-"
_NAME_OF_RANDOM = "random_{}"
_NAME_OF_ZERO = "{}_state_{}"
"""The state of one parameter in a ZeroRedundancyOptimizer, whichever rank owns it."""


class ShardedCheckpoints:
    """The checkpoints of one job in one directory, which all ranks share.

    Every rank calls `load` and `save`, with the default process group initialised. On more than one machine, the
    directory is on a shared file system.

    Args:
        directory: Created if it is missing.
        model: Wrapped already, by `fully_shard` or `DistributedDataParallel`.
        optimizer: Of the wrapped model. One, or several. Each rank writes its own part of a ZeroRedundancyOptimizer.
        others: Whatever else has `state_dict` and `load_state_dict`, such as a learning rate scheduler. Its state is
            that of rank 0.
        keep: How many complete checkpoints remain. Each save removes older ones.

    Raises:
        ValueError: A ZeroRedundancyOptimizer has `overlap_with_ddp`, or does not divide its state among all ranks.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | Iterable[torch.optim.Optimizer],
        *,
        others: Mapping[str, Any] | None = None,
        keep: int = 2,
    ) -> None:
        self._directories = StepDirectories(directory, keep)
        self._model = model
        optimizers = [optimizer] if isinstance(optimizer, torch.optim.Optimizer) else list(optimizer)
        self._zeros = {f"zero_{number}": each for number, each in enumerate(zero_optimizers(optimizers))}
        self._optimizers = [each for each in optimizers if not is_zero(each)]
        self._others = dict(others or {})
        self._group: Any = None  # of saves in the background, whose collectives must not mix with those of training
        self._background = BackgroundSave()

    def load(self, step: int | None = None) -> int:
        """Load a complete checkpoint and return its number of finished steps; 0 if there is none.

        Args:
            step: That of the checkpoint. None: the newest one.
        """
        step = self._directories.newest() if step is None else step
        if step is None:
            return 0
        path = self._directories.path(step)
        state = self._state()
        saved = dcp.FileSystemReader(path).read_metadata().state_dict_metadata
        # A run with more ranks than the one that saved has no random numbers for the new ranks.
        own = {key: bytearray(saved[key].size.numel()) for key in self._own_entries() if key in saved}
        state.update(_as_tensors(own))
        dcp.load(state, checkpoint_id=path)
        set_state_dict(
            self._model, self._optimizers, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
        )
        for name, zero in self._zeros.items():
            entries = {number: own.get(_NAME_OF_ZERO.format(name, number)) for number in part_of_zero(zero)["state"]}
            states = {number: decoded(content) for number, content in entries.items() if content is not None}
            zero.load_state_dict({**state[name], "state": states})
        random = own.get(_NAME_OF_RANDOM.format(dist.get_rank()))
        if random is not None:
            set_encoded_random_state(bytes(random))
        else:
            seed_anew(dist.get_rank())
        return step

    def save(self, step: int) -> None:
        """Write a checkpoint after `step` finished steps. Returns when it is complete, in every rank.

        Does nothing if there is one of this step already.

        Raises:
            RuntimeError: Rank 0 could not prepare or publish it, or a rank could not write its part. In every rank.
        """
        self.finish()
        self._directories.write(step, lambda draft: dcp.save(self._whole_state(), checkpoint_id=draft))

    def save_in_background(self, step: int) -> None:
        """Start to write a checkpoint after `step` finished steps, with `async_save`, while training goes on.

        It is complete, and reported, with the next call of `save`, of this method, or of `finish`.

        Raises:
            RuntimeError: Rank 0 could not prepare it. Raised in every rank.
        """
        self.finish()
        draft = self._directories.prepare(step)
        if draft is not None:
            self._group = self._group or dist.new_group(backend="gloo")
            future = dcp.async_save(self._whole_state(), checkpoint_id=draft, process_group=self._group)

            def complete() -> None:
                with plain_errors():
                    future.result()
                self._directories.publish(step)

            self._background.begin(step, complete)

    def finish(self) -> None:
        """Wait for a save in the background, and report it, or its failure, with its own step."""
        self._background.finish()

    def _whole_state(self) -> dict[str, Any]:
        return {**self._state(), **_as_tensors(self._own_entries())}

    def _own_entries(self) -> dict[str, bytearray]:
        """Return by name what this rank alone has: random numbers, and states of ZeroRedundancyOptimizers."""
        found = {_NAME_OF_RANDOM.format(dist.get_rank()): bytearray(encoded_random_state())}
        for name, zero in self._zeros.items():
            states = part_of_zero(zero)["state"]
            found.update({_NAME_OF_ZERO.format(name, number): encoded(state) for number, state in states.items()})
        return found

    def _state(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self._model, self._optimizers)
        zeros = {name: {"param_groups": part_of_zero(zero)["param_groups"]} for name, zero in self._zeros.items()}
        return {"model": model, "optimizer": optimizer, **zeros, **self._others}


class StepDirectories:
    """The complete checkpoints of a job: directories in one directory, named by the number of finished steps.

    Every rank calls each method, with the default process group initialised.

    Args:
        directory: Created if it is missing. All ranks share it.
        keep: How many complete checkpoints remain. Each one that becomes complete removes older ones.

    Raises:
        ValueError: `keep` is below 1.
    """

    def __init__(self, directory: str | os.PathLike[str], keep: int) -> None:
        if keep < 1:
            raise ValueError(f"keep is {keep}, but one checkpoint is needed to resume from")
        self._directory = Path(directory)
        self._keep = keep

    def newest(self) -> int | None:
        """Return the number of finished steps in the newest complete checkpoint; None if there is none.

        Raises:
            RuntimeError: Rank 0 cannot read the directory. In every rank.
        """
        return newest_step(self._directory)

    def path(self, step: int) -> Path:
        """Return where the complete checkpoint of `step` is."""
        return self._directory / _NAME.format(step)

    def write(self, step: int, save: Callable[[Path], object]) -> None:
        """Have `save` write the checkpoint of `step` to an empty directory, and publish it, unless it is complete.

        Raises:
            RuntimeError: Rank 0 could not prepare or publish it, or a rank could not write its part. In every rank.
        """
        draft = self.prepare(step)
        if draft is not None:
            with plain_errors():
                save(draft)
            self.publish(step)

    def prepare(self, step: int) -> Path | None:
        """Remove the files of interrupted saves. Return the empty directory to write to; None if `step` is complete.

        What is written has a file `.metadata` once all of it is there.

        Raises:
            RuntimeError: Rank 0 cannot. In every rank.
        """
        return self._draft(step) if on_rank_zero(lambda: self._prepared(step)) else None

    def publish(self, step: int) -> None:
        """Give the checkpoint of `step`, which all ranks have written, its name, and remove old ones.

        Raises:
            RuntimeError: Rank 0 cannot. In every rank.
        """
        on_rank_zero(lambda: self._publish(step))

    def _draft(self, step: int) -> Path:
        return self._directory / f"{_DRAFT}{step}"

    def _prepared(self, step: int) -> bool:
        self._directory.mkdir(parents=True, exist_ok=True)
        for draft in self._directory.glob(f"{_DRAFT}*"):
            shutil.rmtree(draft)
        if step in _complete(self._directory):
            return False
        shutil.rmtree(self.path(step), ignore_errors=True)  # an old one whose removal was interrupted
        self._draft(step).mkdir()
        return True

    def _publish(self, step: int) -> None:
        self._draft(step).rename(self.path(step))
        for old in _complete(self._directory)[: -self._keep]:
            shutil.rmtree(self.path(old))


@contextlib.contextmanager
def plain_errors() -> Iterator[None]:
    """Turn a CheckpointException into a RuntimeError that says which ranks have failed, and why.

    It is no Exception, and its text begins with the stack of each rank.
    """
    try:
        yield
    except CheckpointException as error:
        failures = sorted(error.failures.items())
        texts = (f"rank {rank}: {type(failure).__name__}: {failure}" for rank, (failure, _) in failures)
        raise RuntimeError("; ".join(texts)) from error


def newest_step(directory: str | os.PathLike[str]) -> int | None:
    """Return the number of finished steps in the newest complete checkpoint of a directory; None if there is none.

    Called in every rank. Raises RuntimeError if rank 0 cannot read the directory.
    """
    return on_rank_zero(lambda: max(_complete(Path(directory)), default=None))


def _as_tensors(contents: Mapping[str, bytearray]) -> dict[str, Any]:
    """Return tensors in the memory of these bytes, because only tensors are saved in every rank."""
    return {name: torch.frombuffer(content, dtype=torch.uint8) for name, content in contents.items()}


def _complete(directory: Path) -> list[int]:
    """Return the steps of the complete checkpoints, in ascending order."""
    found = (_COMPLETE.fullmatch(path.parent.name) for path in directory.glob("*/.metadata"))
    return sorted(int(match[1]) for match in found if match)


def on_rank_zero(action: Callable[[], T]) -> T:
    """Return the result of `action`, which rank 0 alone carries out, in every rank.

    The others wait for it, so that no rank goes on before the file system has changed, and none waits for a rank 0 that
    has failed.

    Raises:
        RuntimeError: `action` has failed.
    """
    outcome: list[Any] = [None, None]
    if dist.get_rank() == 0:
        try:
            outcome[0] = action()
        except Exception as error:  # noqa: BLE001 - the others wait for it whatever it is
            outcome[1] = str(error)
    outcome = broadcast(outcome, 0)
    if outcome[1] is not None:
        raise RuntimeError(f"the checkpoint of rank 0: {outcome[1]}")
    result: T = outcome[0]
    return result


def broadcast(value: Any, source: int) -> Any:
    """Return the value of the rank `source` in every rank. The object collectives of torch would need NumPy."""
    content = bytearray()
    if dist.get_rank() == source:
        content = encoded(value)
    size = torch.tensor(len(content), device=device_type())
    dist.broadcast(size, source)
    content = content or bytearray(int(size))
    data = torch.frombuffer(content, dtype=torch.uint8)
    sent = data.to(device_type())
    dist.broadcast(sent, source)
    data.copy_(sent)
    return decoded(content)


def device_type(group: Any = None) -> str:
    """Return the type of device whose tensors a process group takes; the default one if None."""
    return "cuda" if dist.get_backend(group) == "nccl" else "cpu"
