"""Saves and exits between two optimizer steps of a DeepSpeed engine when the supervisor asks for it.

    from kubeai.elastic.integrations.deepspeed import supervise

    kubeai.init(collective=True)
    engine, *_ = deepspeed.initialize(...)
    first = supervise(engine, "/checkpoints/resnet")  # loads the last checkpoint
    for batch in batches_from(first):
        engine.backward(engine(batch))
        engine.step()

It wraps `engine.step()`. Pipeline engines, whose `train_batch()` does not call it, are not supported.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Mapping

import torch.distributed as dist  # type: ignore[import-not-found,unused-ignore]
from deepspeed.runtime.checkpoint_engine.torch_checkpoint_engine import TorchCheckpointEngine
from deepspeed.runtime.zero.utils import ZeRORuntimeException

from kubeai.elastic import api, identity
from kubeai.elastic.loop import finish_step

from .random_state import random_state, set_random_state
from .torch import on_rank_zero
from .universal import convert, remove_converted

if TYPE_CHECKING:
    import os


def supervise(engine: Any, directory: str | os.PathLike[str], others: Mapping[str, Any] | None = None) -> int:
    """Load the last complete checkpoint, if any, and let `engine.step()` save and exit when the supervisor asks for it.

    A step is an update of the parameters, whose gradients may have been accumulated over several calls of
    `engine.step()`. Calls in between neither save nor exit, because no checkpoint holds accumulated gradients.

    If the checkpoint is that of another number of ranks, rank 0 converts it first, beside it in the directory, to
    DeepSpeed's universal form, which is removed once it is loaded.

    Args:
        engine: Of `deepspeed.initialize`, the same in every rank.
        directory: Of checkpoints, on a file system that all ranks share. It is created by the first save.
        others: Whatever else has `state_dict` and `load_state_dict`. Its state is that of rank 0.

    Returns:
        The number of finished steps in the checkpoint, `engine.global_steps`; 0 without one.

    Raises:
        ValueError: The engine writes checkpoints in the background, so that nobody knows when they are complete; or the
            last one lacks the state of one of `others`.
    """
    if _is_decoupled(engine.checkpoint_engine):
        raise ValueError("a decoupled checkpoint engine is not supported: its checkpoints complete after the save")
    checkpoints = _DeepSpeedCheckpoints(engine, Path(directory), dict(others or {}))
    checkpoints.load()
    api.resumed(engine.global_steps)
    update = engine.step

    def step(*args: Any, **kwargs: Any) -> None:
        before = engine.global_steps
        update(*args, **kwargs)
        if engine.global_steps != before:
            finish_step(engine.global_steps, checkpoints.save)

    engine.step = step
    return int(engine.global_steps)


def _is_decoupled(checkpoint_engine: Any) -> bool:
    if hasattr(checkpoint_engine, "is_decoupled"):
        return bool(checkpoint_engine.is_decoupled())
    # An older DeepSpeed, whose other engine is Nebula's, which writes in the background.
    return not isinstance(checkpoint_engine, TorchCheckpointEngine)


@dataclass
class _DeepSpeedCheckpoints:
    """The checkpoints of one engine. DeepSpeed's file `latest` names the complete one to resume from."""

    engine: Any
    directory: Path
    others: Mapping[str, Any]

    def load(self) -> None:
        latest = self.directory / "latest"
        if not latest.exists():
            return
        saved = self._client_state(latest.read_text(encoding="ascii").strip())
        for name, other in self.others.items():
            if name not in saved.get("others", {}):
                raise ValueError(f"the last checkpoint in {self.directory} has no state of {name!r}")
            other.load_state_dict(saved["others"][name])
        random = saved.get("random", [])  # missing in a checkpoint that the script has saved by itself
        if len(random) == dist.get_world_size():
            set_random_state(random[dist.get_rank()])

    def _client_state(self, tag: str) -> dict[str, Any]:
        """Load the engine's state, and return the rest of the checkpoint."""
        try:
            return self.engine.load_checkpoint(str(self.directory), tag=tag)[1]  # type: ignore[no-any-return]
        except ZeRORuntimeException:
            if self.engine.loaded_checkpoint_dp_world_size == self.engine.seq_dp_world_size:
                raise
        # Each rank had another share of the optimizer's state than it has now.
        universal = convert(self.directory, tag)
        self.engine._config.load_universal_checkpoint = True  # noqa: SLF001 - the script's configuration is for all runs
        try:
            _, saved = self.engine.load_checkpoint(str(self.directory), tag=universal)
        finally:
            self.engine._config.load_universal_checkpoint = False  # noqa: SLF001
        remove_converted(self.directory, universal)
        return saved  # type: ignore[no-any-return]

    def save(self, step: int) -> None:
        """Return when the checkpoint is complete and `latest` names it, in every rank."""
        # The client state is that of rank 0, except for ZeRO's stage 3.
        random: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(random, random_state())
        client = {"others": {name: other.state_dict() for name, other in self.others.items()}, "random": random}
        tag = f"global_step{step}"
        # DeepSpeed's rank 0 writes `latest` before the others have written their parts, and returns after a barrier.
        self.engine.save_checkpoint(str(self.directory), tag=tag, client_state=client, save_latest=False)
        on_rank_zero(lambda: identity.write_atomically(self.directory / "latest", tag, mode=0o644))
