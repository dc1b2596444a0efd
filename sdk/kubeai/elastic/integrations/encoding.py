"""Turns values with tensors in them into bytes, which go from rank to rank of a job or into its files."""

from __future__ import annotations

import io
from typing import Any

import torch  # type: ignore[import-not-found,unused-ignore]


def encoded(value: Any) -> bytearray:
    """Return a value, with tensors anywhere in it, as bytes for `decoded`."""
    file = io.BytesIO()
    torch.save(value, file)
    return bytearray(file.getbuffer())


def decoded(content: bytes | bytearray) -> Any:
    """Return the value that a rank of this job has encoded, with its tensors in main memory."""
    # A scheduler's state may be of any type.
    return torch.load(io.BytesIO(content), map_location="cpu", weights_only=False)
