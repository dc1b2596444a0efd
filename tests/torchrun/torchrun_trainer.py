"""The script of a Hugging Face Trainer in these tests, in restart mode. It records each of its steps.

torchrun … torchrun_trainer.py WRAPPING DIRECTORY

A step accumulates as many batches as leave its samples the same in every world, so that the Trainer, which takes its
number of steps for the position in the data, goes on with the next sample. Training ends at the step that the file
`end` names.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from kubeai.elastic.integrations.huggingface import train
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments

from tests.testkit import torch_exit
from tests.torchrun.torchrun_training import recorder

# Divisible by every number of ranks from one to four hosts with two processes each.
_BATCH = 24
_STEPS_OF_AN_EPOCH = 40


class TrainerSamples(Dataset):  # type: ignore[misc]  # Torch is not installed where types are checked.
    """Random vectors. The same index has the same sample in every run."""

    def __len__(self) -> int:
        return _BATCH * _STEPS_OF_AN_EPOCH

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(index)
        return {"values": torch.randn(16, generator=generator, dtype=torch.float64)}


class TrainerModel(torch.nn.Module):  # type: ignore[misc]
    """A small model, which returns its loss as Trainer wants it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).double()

    def forward(self, values: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": self.layers(values).square().mean()}


class StepsRecorded(TrainerCallback):  # type: ignore[misc]
    """Records each step, makes none too fast, and ends training at the step that the file names."""

    def __init__(self, directory: Path) -> None:
        self._end = directory / "end"
        self._directory = directory
        self._seconds = float(os.environ.get("TORCHRUN_STEP_SECONDS", "0"))

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        self._record = recorder(self._directory)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        time.sleep(self._seconds)  # the least time of a step, so that a notice comes between two
        self._record(state.global_step - 1)
        control.should_training_stop = self._end.exists() and state.global_step >= int(self._end.read_text())


def _main(directory: Path) -> None:
    torch.manual_seed(0)
    arguments = TrainingArguments(
        str(directory / "checkpoints"),
        max_steps=100_000,
        per_device_train_batch_size=1,
        gradient_accumulation_steps=_BATCH // int(os.environ["WORLD_SIZE"]),
        learning_rate=0.001,
        save_steps=50,
        save_total_limit=2,
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
    )
    model = TrainerModel()
    train(Trainer(model, arguments, train_dataset=TrainerSamples(), callbacks=[StepsRecorded(directory)]))
    if arguments.process_index == 0:
        parameters = [one.detach().flatten().tolist() for one in model.parameters()]
        (directory / "parameters.json").write_text(json.dumps(parameters), encoding="ascii")


if __name__ == "__main__":
    torch_exit.run(lambda: _main(Path(sys.argv[2])))
