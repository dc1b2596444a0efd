"""The entry point of the group `torchrun.handlers`.

torch loads it whenever it is imported, in workers too. So nothing is imported here that the backend alone needs.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from .standalone import refusal

if TYPE_CHECKING:
    from collections.abc import Callable


def kubeai() -> Callable[[Any], Any]:
    """Return what creates the handler of the backend `kubeai` from torch's RendezvousParameters.

    Ends an agent by SystemExit that is started with `--standalone`, with which torchrun ignores the backend.
    """
    reason = refusal(sys.argv, os.environ)
    if reason:
        raise SystemExit(reason)
    return _create


def _create(parameters: Any) -> Any:
    from .handler import KubeaiRendezvous  # noqa: PLC0415 - it imports torch, which imports this module

    return KubeaiRendezvous(parameters)
