"""Run as a script: become a command that the kernel kills when the process that started it dies.

    python -I -S die_with_parent.py PARENT_PID COMMAND [ARGUMENT ...]

For kubeai-run being killed with SIGKILL, when nothing of ours can clean up. Its limits: Linux only; it holds for the
command itself and not for what the command starts (a launcher looks after its own); a set-user-id command is exempt;
and "the process that started it" means the thread that did, hence kubeai-run starts commands from its main thread.

A script of its own rather than a hook between fork and exec: kubeai-run has threads, and Python code in a forked child
of a threaded process may hang on a lock that no thread is left to release.
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
        # It died before the kernel knew of us.
        return 1
    # Python ignores these two, and exec would hand that on.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)  # noqa: S606 - the user's command as it stands, without a shell.
    except OSError as error:
        sys.stderr.write(f"kubeai-run: {command[0]}: {error.strerror}\n")
        return _NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_EXECUTABLE


if __name__ == "__main__":
    sys.exit(_main())
