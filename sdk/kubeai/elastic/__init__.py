"""Tells a training process in time that its capacity is about to be reclaimed.

    import kubeai.elastic as kubeai

    kubeai.init()
    for batch in batches:
        if not kubeai.check_alive():
            save_checkpoint()
            sys.exit(-1)
        train(batch)

The functions are loaded when one is first used: the commands beside them, one of which starts every second, need none.
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
        init,
        notice,
        on_notice,
        seconds_left,
        should_checkpoint,
    )

__all__ = [
    "Directive",
    "DirectiveKind",
    "Notice",
    "__version__",
    "check_alive",
    "checkpoint_saved",
    "directive",
    "init",
    "notice",
    "on_notice",
    "seconds_left",
    "should_checkpoint",
]


if not TYPE_CHECKING:  # for a type checker it would mean that every name exists

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from . import api  # noqa: PLC0415 - see above; http.client, ssl and dataclasses come with it

        functions = {public: getattr(api, public) for public in api.__all__}
        globals().update(functions)  # asked for once: from now on they are plain attributes, as cheap as any
        # A module that has this function is looked through in full at each `kubeai.check_alive()`: 12 ns more.
        globals().pop("__getattr__", None)
        return functions[name]
