"""Warns a training process before its capacity is reclaimed.

    import kubeai.elastic as kubeai

    kubeai.init()
    first = load_checkpoint()
    for step, batch in kubeai.steps(batches_from(first), save_checkpoint, first=first):
        train(batch)

The functions are imported on first use, because the commands in this package, one of which starts every second, do
not need them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .version import __version__

if TYPE_CHECKING:
    from .api import (
        Directive,
        DirectiveKind,
        Notice,
        check_alive,
        checkpoint_failed,
        checkpoint_saved,
        directive,
        exit_for_resume,
        init,
        notice,
        on_notice,
        resumed,
        seconds_left,
        should_checkpoint,
        should_stop,
        stop_is_agreed,
    )
    from .lease import CheckpointLease, checkpoint_lease
    from .loop import Accumulation, accumulation, steps

__all__ = [
    "Accumulation",
    "CheckpointLease",
    "Directive",
    "DirectiveKind",
    "Notice",
    "__version__",
    "accumulation",
    "check_alive",
    "checkpoint_failed",
    "checkpoint_lease",
    "checkpoint_saved",
    "directive",
    "exit_for_resume",
    "init",
    "notice",
    "on_notice",
    "resumed",
    "seconds_left",
    "should_checkpoint",
    "should_stop",
    "steps",
    "stop_is_agreed",
]


if not TYPE_CHECKING:  # a type checker would take it to mean that every name exists

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from . import api, lease, loop  # noqa: PLC0415 - see above; they import http.client, ssl and dataclasses

        modules = (api, lease, loop)
        functions = {public: getattr(module, public) for module in modules for public in module.__all__}
        del functions["finish_step"]
        globals().update(functions)  # from now on they are plain attributes
        # A module with a `__getattr__` costs 12 ns more at each `kubeai.check_alive()`.
        globals().pop("__getattr__", None)
        return functions[name]
