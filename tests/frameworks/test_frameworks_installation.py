"""Each framework is importable on a machine without a GPU, and is the version that the support table names."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.frameworks.frameworks_installation import CHOSEN
from tests.frameworks.frameworks_support import version

pytestmark = pytest.mark.brief

_MODULES = ("torch", "transformers", "accelerate", "lightning.pytorch", "keras", "deepspeed")


@pytest.mark.parametrize("module", _MODULES)
def test_a_framework_is_importable_without_a_gpu(frameworks: Path, module: str) -> None:
    """Torch loads with the stand-in for its CUDA libraries and finds no GPU."""
    script = f"import torch, {module}; assert not torch.cuda.is_available(); print({module}.__version__)"
    variables = {**os.environ, "KERAS_BACKEND": "torch", "DS_ACCELERATOR": "cpu"}
    command = [str(frameworks / "bin" / "python"), "-c", script]
    said = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=variables)
    assert said.returncode == 0, said.stderr
    assert said.stdout.splitlines()[-1].partition("+")[0] == version(module.partition(".")[0], CHOSEN.locks[-1])
