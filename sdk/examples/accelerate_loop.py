"""Hugging Face Accelerate: the loops over epochs and batches become one, which stops and resumes.

torchrun --nproc-per-node 4 accelerate_loop.py DIRECTORY [STEPS]
"""

import sys

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, DistributedDataParallelKwargs, set_seed
from torch.utils.data import DataLoader, TensorDataset

from kubeai.elastic.integrations.accelerate import resumable

_SAMPLES = 128
_EPOCH_STEPS = 8
"""With four processes."""


def main(directory: str, steps: int) -> None:
    """Train."""
    data = DataLoaderConfiguration(use_seedable_sampler=True, data_seed=0)  # the same order in every run
    # Otherwise DDP adds the gradients up in another order after the first step of a run, which changes the last bits.
    one_order = DistributedDataParallelKwargs(find_unused_parameters=True)
    accelerator = Accelerator(cpu=not torch.cuda.is_available(), dataloader_config=data, kwargs_handlers=[one_order])
    set_seed(0)
    samples = TensorDataset(torch.randn(_SAMPLES, 16))
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Dropout(), torch.nn.Linear(32, 1))
    model, optimizer, loader = accelerator.prepare(
        model, torch.optim.AdamW(model.parameters()), DataLoader(samples, batch_size=4, shuffle=True)
    )
    for (batch,) in resumable(accelerator, loader, directory, epochs=steps // _EPOCH_STEPS):
        accelerator.backward(model(batch).square().mean())
        optimizer.step()
        optimizer.zero_grad()
    accelerator.end_training()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if sys.argv[2:] else 1_000_000)
