"""Waits for a save in the background, and reports it once it is complete."""

from __future__ import annotations

from typing import Callable

from kubeai.elastic import api


class BackgroundSave:
    """The save in the background of one process: none, or one that is not reported yet."""

    def __init__(self) -> None:
        self._begun: tuple[int, Callable[[], object]] | None = None

    def begin(self, step: int, complete: Callable[[], object]) -> None:
        """Remember that a save was started after so many finished steps.

        Args:
            step: The number of finished steps.
            complete: Returns when the checkpoint is complete, and raises an Exception if it cannot be.
        """
        self._begun = step, complete

    def finish(self) -> None:
        """Wait for the save, if there is one, and report it, or its failure, with its own step."""
        begun, self._begun = self._begun, None
        if begun is None:
            return
        step, complete = begun
        try:
            complete()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is not the failure of the save that follows
            api.checkpoint_failed(error, step)
        else:
            api.checkpoint_saved(step)
