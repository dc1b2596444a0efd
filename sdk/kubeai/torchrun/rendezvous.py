"""The entry point of the group `torchrun.handlers`.

torch loads it whenever it is imported, in workers too. So nothing is imported here that the backend alone needs.
"""

from __future__ import annotations

import os
import sys
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Mapping, Sequence

if TYPE_CHECKING:
    from collections.abc import Callable

_BACKEND, _STANDALONE = "rdzv-backend", "standalone"
_SWITCHES = {_STANDALONE, "m", "module", "no-python", "run-path", "virtual-local-rank"}
_PROGRAMS = ("torchrun", "torch/distributed/run.py", "torch/distributed/launch.py")


def kubeai() -> Callable[[Any], Any]:
    """Return the function that creates the handler of the backend `kubeai` from torch's RendezvousParameters.

    Raises SystemExit in an agent that was started with `--standalone`, because torchrun then ignores the backend.
    """
    reason = refusal(sys.argv, os.environ)
    if reason:
        raise SystemExit(reason)

    def create(parameters: Any) -> Any:
        from .handler import KubeaiRendezvous  # noqa: PLC0415 - it imports torch, which imports this module

        return KubeaiRendezvous(parameters)

    return create


def refusal(arguments: Sequence[str], environment: Mapping[str, str]) -> str | None:
    """Return why an elastic agent with this command line must not start; None for every other process."""
    program = PurePath(arguments[0] if arguments else "").as_posix()
    if not program.endswith(_PROGRAMS):
        return None
    options: dict[str, str] = {}  # torchrun's own, which stand in front of the script
    rest = iter(arguments[1:])
    for argument in rest:
        if not argument.startswith("-"):
            break
        name, has_value, value = argument.lstrip("-").replace("_", "-").partition("=")
        options[name] = value if has_value or name in _SWITCHES else next(rest, "")
    backend = options.get(_BACKEND, environment.get("PET_RDZV_BACKEND"))
    standalone = _STANDALONE in options or environment.get("PET_STANDALONE", "0") not in ("", "0")
    if backend != "kubeai" or not standalone:
        return None
    return (
        "torchrun: --standalone (or PET_STANDALONE) replaces the rendezvous backend kubeai by one that loses the job "
        "with its host. Use --nnodes=MIN:MAX instead, or leave the backend out."
    )
