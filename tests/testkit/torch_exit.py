"""Ends a training process without Python's finalization, in which a thread of Gloo may abort it.

Such a thread releases the tensors of a collective a moment after it, for which it needs the interpreter's lock. Once
Python is finalizing, it cannot have the lock, and the process aborts: in one of seven runs of torch 2.15 on an idle
machine, with exit code -6 although everything was done. Seen upstream in pytorch/pytorch#179291, which is not solved.
"""

import atexit
import os
import sys
from collections.abc import Callable
from multiprocessing import util


def run(main: Callable[[], object]) -> None:
    """Call `main`. If it returns, the process ends with 0 once the exit handlers that it registered have run."""
    is_done = False

    def end() -> None:
        if is_done:
            # Its own exit handler, which ends the processes that it has started, is older than this one.
            util._exit_function()  # type: ignore[attr-defined]  # no public way
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)

    # Handlers run in the reverse order, so this one runs after those of the script.
    atexit.register(end)
    main()
    is_done = True
