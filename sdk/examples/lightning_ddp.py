"""PyTorch Lightning with DDP, a plain shuffled DataLoader, dropout and a validation after each epoch.

torchrun --nproc-per-node 4 lightning_ddp.py CHECKPOINTS [EPOCHS]

The two lines for the supervisor are marked. The script runs without a supervisor as well.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader, TensorDataset

from kubeai.elastic.integrations.lightning import AgreedStop, latest_checkpoint


class Regression(pl.LightningModule):
    """Learns the sum of its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Dropout(0.2), torch.nn.Linear(32, 1))

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        """Return the loss of one batch."""
        inputs, targets = batch
        return torch.nn.functional.mse_loss(self.layers(inputs), targets)

    def validation_step(self, batch: list[torch.Tensor], _: int) -> None:
        """Log the loss of one batch."""
        inputs, targets = batch
        self.log("loss", torch.nn.functional.mse_loss(self.layers(inputs), targets), sync_dist=True)

    def configure_optimizers(self) -> tuple[list[torch.optim.Optimizer], list[torch.optim.lr_scheduler.LRScheduler]]:
        """Return the optimizer and its schedule."""
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.9)]


def samples(number: int, seed: int) -> TensorDataset:
    """Return as many samples, the same in every run."""
    inputs = torch.randn(number, 16, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(inputs, inputs.sum(dim=1, keepdim=True))


def main(checkpoints: Path, epochs: int) -> None:
    """Train: an epoch has 30 batches for each of four ranks, and its validation 5."""
    pl.seed_everything(0)
    trainer = pl.Trainer(
        accelerator="cpu",
        # With plain "ddp", the first step of a run adds the gradients up in another order than all later ones.
        strategy="ddp_find_unused_parameters_true",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        num_nodes=int(os.environ["WORLD_SIZE"]) // int(os.environ["LOCAL_WORLD_SIZE"]),
        max_epochs=epochs,
        callbacks=[AgreedStop(checkpoints)],  # saves and exits when the supervisor asks for it
        enable_checkpointing=False,
        enable_progress_bar=False,
        logger=False,
    )
    training = DataLoader(samples(960, seed=1), batch_size=8, shuffle=True)
    validation = DataLoader(samples(160, seed=2), batch_size=8)
    trainer.fit(Regression(), training, validation, ckpt_path=latest_checkpoint(checkpoints))  # resumes


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if sys.argv[2:] else 1_000)
