"""Hugging Face Trainer: all ranks stop at one step, write one checkpoint, and the next run continues exactly there.

torchrun --nproc-per-node 4 huggingface.py DIRECTORY [STEPS [train | callback | deepspeed]]

With `callback`, it does as a tool does that calls `trainer.train()` itself. With `deepspeed`, the Trainer has a
configuration of DeepSpeed, and all ranks write the optimizer's state.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments

from kubeai.elastic.integrations.huggingface import ElasticCallback, latest_checkpoint, train


class Samples(Dataset):
    """Random vectors. The same index has the same sample in every run."""

    def __len__(self) -> int:
        """Return how many there are."""
        return 128

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        """Return one sample, as the arguments of the model."""
        return {"values": torch.randn(16, generator=torch.Generator().manual_seed(index))}


class Model(torch.nn.Module):
    """A small model with dropout, which returns its loss as Trainer wants it."""

    def __init__(self) -> None:
        """Make it."""
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Dropout(), torch.nn.Linear(32, 1))

    def forward(self, values: torch.Tensor, **_: Any) -> dict[str, torch.Tensor]:
        """Return the loss of a batch."""
        return {"loss": self.layers(values).square().mean()}


_ZERO = {
    "train_micro_batch_size_per_gpu": "auto",
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "torch_adam": True}},
    "zero_optimization": {"stage": 2},
    "fp16": {"enabled": "auto"},  # older Transformers take it for enabled where it is left out
}


def main(directory: str, steps: int, how: str = "train") -> None:
    """Train."""
    torch.manual_seed(0)
    args = TrainingArguments(
        directory,
        max_steps=steps,
        per_device_train_batch_size=4,
        learning_rate=0.01,
        eval_strategy="steps",
        eval_steps=5,
        save_steps=10,
        use_cpu=not torch.cuda.is_available(),
        report_to="none",
        disable_tqdm=True,
        deepspeed=_ZERO if how == "deepspeed" else None,
    )
    trainer = Trainer(Model(), args, train_dataset=Samples(), eval_dataset=Samples())
    if how == "callback":
        trainer.add_callback(ElasticCallback())
        trainer.train(resume_from_checkpoint=latest_checkpoint(directory))
    else:
        train(trainer)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if sys.argv[2:] else 1_000_000, *sys.argv[3:])
