"""How much work a call is, by what neither a busy machine nor a full heap changes: the lines of Python that it runs."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def lines_run(call: Callable[[], object]) -> int:
    """Returns how many lines of Python `call` runs. Work within functions of C is not seen."""
    count, before = 0, sys.gettrace()

    def traced(_frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal count
        count += event == "line"
        return traced

    sys.settrace(traced)
    try:
        call()
    finally:
        sys.settrace(before)
    return count
