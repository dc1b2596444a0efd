"""Tells the thread that owns some state from others, which may read it and must not change it."""

import threading


class OwnThread:
    """The thread that has made this object, such as that of the event loop."""

    def __init__(self) -> None:
        self._ident = threading.get_ident()

    def is_here(self) -> bool:
        """Whether the caller runs in it."""
        return threading.get_ident() == self._ident
