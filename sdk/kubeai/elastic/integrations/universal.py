"""Converts checkpoints of DeepSpeed's ZeRO to a form that any number of ranks can load. All ranks call them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import torch.distributed as dist  # type: ignore[import-not-found,unused-ignore]

from .torch import on_rank_zero

if TYPE_CHECKING:
    from pathlib import Path


def convert(directory: Path, tag: str) -> str:
    """Write a checkpoint in DeepSpeed's form that any number of ranks can load, beside it; return the new one's tag.

    Rank 0 converts.

    Raises:
        RuntimeError: It could not be converted.
    """
    return on_rank_zero(lambda: _convert(directory, tag))


def convert_latest(directory: Path, ranks: int) -> str | None:
    """Convert the newest checkpoint of a directory in the same way if another number of ranks has written it.

    Returns:
        The tag of the converted one; None if there is nothing to convert.
    """
    return on_rank_zero(lambda: _convert_latest(directory, ranks))


def remove_converted(directory: Path, universal: str) -> None:
    """Remove a converted checkpoint once all ranks have loaded it."""
    dist.barrier()
    on_rank_zero(lambda: _remove(directory, universal))


def _convert_latest(directory: Path, ranks: int) -> str | None:
    latest = directory / "latest"
    if not latest.exists():
        return None
    tag = latest.read_text(encoding="ascii").strip()
    parts = list((directory / tag).glob("*zero_pp_rank_*_optim_states.pt"))
    return _convert(directory, tag) if len(parts) not in (0, ranks) else None


def _convert(directory: Path, tag: str) -> str:
    source, target = directory / tag, directory / f"{tag}_universal"
    shutil.rmtree(target, ignore_errors=True)
    command = [sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal", "--inject_missing_state"]
    command += ["--input_folder", str(source), "--output_folder", str(target)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, errors="replace")  # noqa: S603 - a fixed program
    if done.returncode:
        raise RuntimeError(f"{source} could not be converted for another number of ranks: {done.stderr[-500:]}")
    return target.name


def _remove(directory: Path, universal: str) -> None:
    shutil.rmtree(directory / universal)
    (directory / "latest_universal").unlink()
