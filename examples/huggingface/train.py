"""Fine-tunes a tiny model with the Trainer of Hugging Face. The two lines that are kubeai's are marked.

torchrun train.py DIRECTORY [STEPS]
"""

import sys
import time
from typing import Any

import torch
from transformers import Trainer, TrainerCallback, TrainerState, TrainingArguments

from kubeai.elastic.integrations.huggingface import train  # kubeai

_STEP_SECONDS = 0.05


class TinyModel(torch.nn.Linear):
    """One layer, which returns its loss as the Trainer wants it."""

    def forward(self, values: torch.Tensor, **_: Any) -> dict[str, torch.Tensor]:
        """Return the loss of a batch."""
        return {"loss": super().forward(values).square().mean()}


class Progress(TrainerCallback):
    """Prints where the training is, and gives people time to look."""

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, *_: Any, **__: Any) -> None:
        """Print the step of the checkpoint, 0 without one."""
        if state.is_world_process_zero:
            print(f"{args.world_size} ranks, starts at step {state.global_step}", flush=True)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, *_: Any, **__: Any) -> None:
        """Print every twentieth step."""
        time.sleep(_STEP_SECONDS)  # Such a step takes no time: this one leaves people some to look.
        if state.is_world_process_zero and state.global_step % 20 == 0:
            print(f"{args.world_size} ranks, step {state.global_step}", flush=True)


def main(directory: str, steps: int) -> None:
    """Train."""
    torch.manual_seed(0)
    args = TrainingArguments(
        directory,
        max_steps=steps,
        per_device_train_batch_size=4,
        learning_rate=0.01,
        save_steps=500,
        save_total_limit=2,
        use_cpu=not torch.cuda.is_available(),
        report_to="none",
        disable_tqdm=True,
    )
    samples = [{"values": values} for values in torch.randn(1024, 16)]
    trainer = Trainer(TinyModel(16, 1), args, train_dataset=samples, callbacks=[Progress()])
    train(trainer)  # kubeai: instead of trainer.train()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if sys.argv[2:] else 100_000)
