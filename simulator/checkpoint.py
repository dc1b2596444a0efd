"""The checkpoint file of the demo job: one file with a digest, replaced atomically."""

import os
from pathlib import Path

import numpy as np

from simulator.model import Params, digest


class DamagedCheckpointError(ValueError):
    """The file is not a complete checkpoint. Do not train from it."""


def save(path: Path, params: Params, step: int) -> None:
    """Replace the checkpoint. When this returns, the new one is on disk; there is always a complete one."""
    header = f"{step} {digest(params, step)}\n".encode()
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("wb") as file:
        file.write(header + params.tobytes())
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    _sync_folder(path.parent)


def load(path: Path) -> tuple[Params, int] | None:
    """Return parameters and step, or None if there is no file yet. Raises DamagedCheckpointError."""
    try:
        header, _, payload = path.read_bytes().partition(b"\n")
    except FileNotFoundError:
        return None
    try:
        step, expected = header.decode().split()
        params: Params = np.frombuffer(payload, dtype=np.float64)
        sound = digest(params, int(step)) == expected
    except ValueError as error:
        raise DamagedCheckpointError(f"{path} is no checkpoint") from error
    if not sound:
        raise DamagedCheckpointError(f"{path} does not hold what was saved")
    return params, int(step)


def _sync_folder(folder: Path) -> None:
    # The new name is on disk only after its folder is synced.
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
