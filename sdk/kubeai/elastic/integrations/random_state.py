"""The state of this process's random number generators: of Python, NumPy and PyTorch, and of its CUDA device.

Dropout, shuffling and random augmentation draw from them, so a run continues exactly only with their state.
"""

from __future__ import annotations

import hashlib
import io
import random
import sys
from typing import Any, Dict

import torch  # type: ignore[import-not-found,unused-ignore]

RandomState = Dict[str, Any]
"""Numbers, strings, tuples, lists and tensors only, so that `torch.load(weights_only=True)` reads it."""


def random_state() -> RandomState:
    """Return the present state of all generators."""
    state: RandomState = {"python": random.getstate(), "torch": torch.get_rng_state()}
    numpy = sys.modules.get("numpy")  # not imported: without it nothing has drawn from its generator
    if numpy is not None:
        name, keys, *position = numpy.random.get_state()
        state["numpy"] = (name, keys.tolist(), *position)
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def set_random_state(state: RandomState) -> None:
    """Set the generators to a state of `random_state`. A generator that this process lacks is left out."""
    random.setstate(state["python"])
    torch.set_rng_state(state["torch"].cpu())
    numpy = sys.modules.get("numpy")
    if numpy is not None and "numpy" in state:
        numpy.random.set_state(state["numpy"])
    if torch.cuda.is_available() and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"].cpu())


def encoded_random_state() -> bytes:
    """Return the present state of all generators as bytes."""
    buffer = io.BytesIO()
    torch.save(random_state(), buffer)
    return buffer.getvalue()


def set_encoded_random_state(encoded: bytes) -> None:
    """Set the generators to a state of `encoded_random_state`."""
    set_random_state(torch.load(io.BytesIO(encoded)))


def seed_anew(rank: int) -> None:
    """Seed the generators from what they would draw next and a number, so that ranks with equal states differ.

    For a rank for whose number no state was saved. Another rank may have got the one that this rank has.

    Args:
        rank: The number.
    """
    drawn = torch.randint(2**62, ()).item()
    seed = int.from_bytes(hashlib.sha256(f"{drawn}/{rank}".encode()).digest()[:4], "big")
    random.seed(seed)
    torch.manual_seed(seed)  # of CUDA devices, too
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed)
