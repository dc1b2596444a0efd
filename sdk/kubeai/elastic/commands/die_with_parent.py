"""A script that replaces itself by a command. The kernel kills the command when its parent process dies.

    python -I -S die_with_parent.py PARENT_PID COMMAND [ARGUMENT ...]

It covers a kubeai-run that is killed with SIGKILL and cannot clean up. Its limits: Linux only; it applies to the
command
itself and not to the command's children (a launcher ends its own); a set-user-id command is exempt; and the parent is
the thread that started it, so kubeai-run starts commands from its main thread.

It is a separate script instead of a hook between fork and exec, because kubeai-run has threads, and Python code in a
forked child of a threaded process may hang on a lock that no thread will release.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_NOT_FOUND, _NOT_EXECUTABLE = 127, 126


def _main() -> int:
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        # The parent died before prctl took effect.
        return 1
    # Python ignores these two signals, and exec would inherit that.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)  # noqa: S606 - the user's own command, without a shell.
    except OSError as error:
        sys.stderr.write(f"kubeai-run: {command[0]}: {error.strerror}\n")
        return _NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_EXECUTABLE


if __name__ == "__main__":
    sys.exit(_main())
