"""Recognizes `torchrun --standalone`, which replaces the backend by c10d without a word."""

from __future__ import annotations

from pathlib import PurePath
from typing import Mapping, Sequence

_BACKEND, _STANDALONE = "rdzv-backend", "standalone"
_SWITCHES = {_STANDALONE, "m", "module", "no-python", "run-path", "virtual-local-rank"}
_PROGRAMS = ("torchrun", "torch/distributed/run.py", "torch/distributed/launch.py")


def refusal(arguments: Sequence[str], environment: Mapping[str, str]) -> str | None:
    """Return why an elastic agent with this command line must not start; None for every other process."""
    program = PurePath(arguments[0] if arguments else "").as_posix()
    if not program.endswith(_PROGRAMS):
        return None
    options = _options(arguments[1:])
    backend = options.get(_BACKEND, environment.get("PET_RDZV_BACKEND"))
    standalone = _STANDALONE in options or environment.get("PET_STANDALONE", "0") not in ("", "0")
    if backend != "kubeai" or not standalone:
        return None
    return (
        "torchrun: --standalone (or PET_STANDALONE) replaces the rendezvous backend kubeai by one that loses the job "
        "with its host. Use --nnodes=MIN:MAX instead, or leave the backend out."
    )


def _options(arguments: Sequence[str]) -> dict[str, str]:
    """Return torchrun's own options, which stand in front of the script."""
    found: dict[str, str] = {}
    rest = iter(arguments)
    for argument in rest:
        if not argument.startswith("-"):
            return found
        name, has_value, value = argument.lstrip("-").replace("_", "-").partition("=")
        found[name] = value if has_value or name in _SWITCHES else next(rest, "")
    return found
