"""The example of TorchTitan with a validation after each tenth step, on the same data each time.

    torchtitan_validating.py DIRECTORY STEPS [FILE]

In the validation after step 20, rank 0 makes FILE, if it is given, and waits until somebody removes it.
"""

import importlib
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torchtitan.components.validate import Validator

_EXAMPLES = Path(__file__).parents[2] / "sdk" / "examples"
_EVERY, _WAITS_AFTER, _BATCHES = 10, 20, 4


def _main(directory: str, steps: int, *file: str) -> None:
    sys.path.insert(0, str(_EXAMPLES))
    example: Any = importlib.import_module("torchtitan_llama")

    class Tokens(example.RandomTokens):  # type: ignore[misc]  # TorchTitan is not installed where types are checked.
        @dataclass(kw_only=True, slots=True)
        class Config(example.RandomTokens.Config):  # type: ignore[misc]
            infinite: bool = True

    class WaitingValidator(Validator):  # type: ignore[misc]
        @dataclass(kw_only=True, slots=True)
        class Config(Validator.Config):  # type: ignore[misc]
            """Nothing more to configure."""

        def validate(self, model_parts: list[Any], step: int) -> None:
            if file and step == _WAITS_AFTER and dist.get_rank() == 0:
                _wait(Path(file[0]))
            Validator.validate(self, model_parts, step)

    config = example.llama3(directory, steps, is_in_background=False)
    config.validator = WaitingValidator.Config(enable=True, freq=_EVERY, steps=_BATCHES, dataloader=Tokens.Config())
    trainer = config.build()
    try:
        trainer.train()
    finally:
        trainer.close()
    dist.destroy_process_group()


def _wait(file: Path) -> None:
    file.touch()
    while file.exists():
        time.sleep(0.05)  # nothing announces that a file is removed


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
