"""Warns a training process before its capacity is reclaimed.

    import kubeai.elastic as kubeai

    kubeai.init()
    for batch in batches:
        if not kubeai.check_alive():
            save_checkpoint()
            sys.exit(-1)
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

__all__ = [
    "Directive",
    "DirectiveKind",
    "Notice",
    "__version__",
    "check_alive",
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
    "stop_is_agreed",
]


if not TYPE_CHECKING:  # a type checker would take it to mean that every name exists

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from . import api  # noqa: PLC0415 - see above; it imports http.client, ssl and dataclasses

        functions = {public: getattr(api, public) for public in api.__all__}
        globals().update(functions)  # from now on they are plain attributes
        # A module with a `__getattr__` costs 12 ns more at each `kubeai.check_alive()`.
        globals().pop("__getattr__", None)
        return functions[name]
