"""The memory of copies of parts: this process's own, or mapped from files that outlive it."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, Iterable, Mapping, Sequence

import torch  # type: ignore[import-not-found,unused-ignore]
from kubeai.elastic.integrations.encoding import decoded

from .parts import CarriedPart, Path, divided_tensors
from .stderr import say

if TYPE_CHECKING:
    from .copy_files import CopyFile, CopyFiles, FoundCopy
    from .moves import PartClaim

_ALIGNMENT = 64
"""Bytes at whose multiples the rows of a tensor begin in a file."""

_Shapes = Mapping[Path, "tuple[Sequence[int], torch.dtype]"]


def part_with_room(  # noqa: PLR0913 - what is copied, and to where
    claim: PartClaim,
    rest: Any,
    random: Mapping[int, bytes],
    before: CarriedPart | None,
    files: CopyFiles | None,
    *,
    is_pinned: bool = False,
) -> CarriedPart:
    """Return a part whose rows are still to be filled. Raises OSError if there is no room for another file.

    Args:
        claim: Which part of which state it is.
        rest: As of CarriedPart.
        random: As of CarriedPart.
        before: An older copy, whose memory is used if it fits; it is gone then.
        files: Where the memory is; None for that of this process.
        is_pinned: Whether a GPU copies to it, unless it is in a file.
    """
    shapes = _shapes(rest, claim)
    if files is None:
        known: Mapping[Path, torch.Tensor] = {} if before is None else before.rows
        rows = {path: _room(known.get(path), *shape, is_pinned=is_pinned) for path, shape in shapes.items()}
        return CarriedPart(claim, rows, rest, random)
    file = _file_for(_size(shapes), before, files)
    return CarriedPart(claim, _views(file, shapes), rest, random, file)


def publish(part: CarriedPart, content: bytes) -> None:
    """Offer a part whose rows are complete to processes that start later, if it is in a file. Raises OSError.

    Args:
        part: What is offered.
        content: Its `rest` and `random`, encoded.
    """
    if part.file is not None:
        part.file.publish(part.claim, content)


def parts_of(found: Iterable[FoundCopy]) -> list[CarriedPart]:
    """Return the parts that are in files. One that is malformed costs a line on stderr."""
    parts = (_part_of(each) for each in found)
    return [part for part in parts if part is not None]


def _part_of(found: FoundCopy) -> CarriedPart | None:
    try:
        rest, random = decoded(found.rest)
        shapes = _shapes(rest, found.claim)
        rows = _views(found.file, shapes)
    except Exception as error:  # noqa: BLE001 - whatever a malformed pickle raises
        say(f"a copy of the state is ignored: {type(error).__name__}: {error}")
        return None
    return CarriedPart(found.claim, rows, rest, random, found.file)


def _shapes(rest: Any, claim: PartClaim) -> _Shapes:
    """Return the shapes of a part's rows, in an order that is the same in every rank."""
    found = {}
    for path, tensor in divided_tensors(rest).items():
        first, end = tensor.rows_of(claim.parts, claim.part)
        found[path] = (end - first, *tensor.shape[1:]), tensor.dtype
    return found


def _bytes_of(shape: Sequence[int], dtype: torch.dtype) -> int:
    return prod(shape) * int(dtype.itemsize)


def _size(shapes: _Shapes) -> int:
    """Return how long a file with these rows is, in bytes; at least one."""
    return sum(-(-_bytes_of(*shape) // _ALIGNMENT) * _ALIGNMENT for shape in shapes.values()) or _ALIGNMENT


def _views(file: CopyFile, shapes: _Shapes) -> dict[Path, torch.Tensor]:
    memory, at, rows = torch.frombuffer(file.memory, dtype=torch.uint8), 0, {}
    for path, (shape, dtype) in shapes.items():
        size = _bytes_of(shape, dtype)
        rows[path] = memory[at : at + size].view(dtype).view(tuple(shape))
        at += -(-size // _ALIGNMENT) * _ALIGNMENT
    return rows


def _file_for(size: int, before: CarriedPart | None, files: CopyFiles) -> CopyFile:
    file = None if before is None else before.file
    if file is not None and len(file.memory) == size:
        file.withdraw()
        return file
    if file is not None:
        file.remove()
    return files.make(size)


def _room(before: torch.Tensor | None, shape: Sequence[int], dtype: torch.dtype, *, is_pinned: bool) -> torch.Tensor:
    if before is not None and before.shape == tuple(shape) and before.dtype == dtype:
        return before
    return torch.empty(*shape, dtype=dtype, pin_memory=is_pinned)
