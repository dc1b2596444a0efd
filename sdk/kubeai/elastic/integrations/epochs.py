"""The position in an epoch whose batches have another number in each run, as with another number of ranks."""

from __future__ import annotations


def rescaled(trained: int, before: float, now: float) -> int:
    """Return how many of `now` batches are as much of an epoch as `trained` of `before` batches.

    It is rounded down, so that samples of up to one batch are trained again rather than left out. If an epoch has no
    known length (infinity), its position stays the same number of batches.
    """
    if before == now or float("inf") in (before, now):
        return trained
    return int(trained * now // before)
