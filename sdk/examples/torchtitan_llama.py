"""TorchTitan: its own trainer, whose checkpoint manager makes all ranks stop at one agreed step.

torchrun --nproc-per-node 4 torchtitan_llama.py DIRECTORY [STEPS [background]]

Or with TorchTitan's own entry point: torchrun … -m torchtitan.train --module torchtitan_llama --config llama3

With `background`, the checkpoints that nobody asks for are written while training goes on.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, Iterator

import torch
import torch.distributed as dist
from torchtitan.components.dataloader import BaseDataLoader
from torchtitan.components.loss import CrossEntropyLoss
from torchtitan.components.metrics import MetricsProcessor
from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw
from torchtitan.components.tokenizer import BaseTokenizer
from torchtitan.config import DebugConfig, TrainingConfig
from torchtitan.models.llama3 import model_registry
from torchtitan.trainer import Trainer

from kubeai.elastic.integrations.torchtitan import AgreedCheckpoints

VOCABULARY = 2048
"""Of TorchTitan's debug model."""


class NumberTokenizer(BaseTokenizer):
    """Reads numbers that are the tokens."""

    @dataclass(kw_only=True, slots=True)  # novm: TorchTitan asks for both, and for Python 3.11
    class Config(BaseTokenizer.Config):
        """Nothing to configure."""

    def __init__(self, **_: Any) -> None:
        super().__init__()

    def encode(self, text: str) -> list[int]:
        """Return the numbers of a text."""
        return [int(number) for number in text.split()]

    def decode(self, tokens: list[int]) -> str:
        """Return the text of these numbers."""
        return " ".join(str(token) for token in tokens)

    def get_vocab_size(self) -> int:
        """Return how many tokens there are."""
        return VOCABULARY


class RandomTokens(BaseDataLoader):
    """Batches of random tokens. Its position counts those of all ranks, so that another number of ranks continues."""

    @dataclass(kw_only=True, slots=True)  # novm: TorchTitan asks for both, and for Python 3.11
    class Config(BaseDataLoader.Config):
        """Nothing to configure."""

    def __init__(
        self,
        *,
        dp_world_size: int,
        dp_rank: int,
        seq_len: int,
        local_batch_size: int,
        **_: Any,
    ) -> None:
        self._ranks, self._rank = dp_world_size, dp_rank
        self._shape = (local_batch_size, seq_len + 1)
        self._batches = 0  # of all ranks

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        """Yield this rank's batches. The same number has the same batch in every run."""
        while True:
            generator = torch.Generator().manual_seed(self._batches + self._rank)
            tokens = torch.randint(VOCABULARY, self._shape, generator=generator)
            self._batches += self._ranks
            positions = torch.arange(tokens.shape[1] - 1).expand(tokens.shape[0], -1)
            yield {"input": tokens[:, :-1], "positions": positions}, tokens[:, 1:]

    def state_dict(self) -> dict[str, int]:
        """Return the position, which is the same in all ranks."""
        return {"batches": self._batches}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """Continue there."""
        self._batches = state_dict["batches"]


def llama3(directory: str = "outputs", steps: int = 1_000_000, *, is_in_background: bool = True) -> Trainer.Config:
    """Return the configuration of the training of a small Llama 3."""
    specification = model_registry("debugmodel")
    specification.model.layers = specification.model.layers[:2]
    return Trainer.Config(
        model_spec=specification,
        loss=CrossEntropyLoss.Config(global_vocab_size=VOCABULARY),
        dump_folder=directory,
        tokenizer=NumberTokenizer.Config(),
        dataloader=RandomTokens.Config(),
        optimizer=default_adamw(lr=8e-4),
        lr_scheduler=LRSchedulersContainer.Config(warmup_steps=2),
        training=TrainingConfig(
            local_batch_size=2,
            global_batch_size=8,
            seq_len=32,
            steps=steps,
            mixed_precision_param="float32",
            disable_cuda_graphs=True,
        ),
        metrics=MetricsProcessor.Config(log_freq=1),
        debug=DebugConfig(seed=0),
        activation_checkpoint=None,
        checkpoint=AgreedCheckpoints.Config(
            interval=20,
            keep_latest_k=2,
            last_save_model_only=False,
            async_mode="async" if is_in_background else "disabled",
        ),
    )


def main(directory: str, steps: int, *, is_in_background: bool) -> None:
    """Train."""
    trainer = llama3(directory, steps, is_in_background=is_in_background).build()
    try:
        trainer.train()
    finally:
        trainer.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if sys.argv[2:] else 1_000_000, is_in_background="background" in sys.argv[3:])
