"""Each framework is importable on a machine without a GPU, and is the version that the support table names."""

import os
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.brief

VERSIONS = {
    "torch": "2.15.0",
    "transformers": "5.23.0",
    "accelerate": "1.15.0",
    "lightning.pytorch": "2.6.6",
    "keras": "3.15.1",
    "deepspeed": "0.19.8",
}


@pytest.mark.parametrize("module", VERSIONS)
def test_a_framework_is_importable_without_a_gpu(frameworks: Path, module: str) -> None:
    """Torch loads with the stand-in for its CUDA libraries and finds no GPU."""
    script = f"import torch, {module}; assert not torch.cuda.is_available(); print({module}.__version__)"
    variables = {**os.environ, "KERAS_BACKEND": "torch", "DS_ACCELERATOR": "cpu"}
    command = [str(frameworks / "bin" / "python"), "-c", script]
    said = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=variables)
    assert said.returncode == 0, said.stderr
    assert said.stdout.splitlines()[-1].partition("+")[0] == VERSIONS[module]
