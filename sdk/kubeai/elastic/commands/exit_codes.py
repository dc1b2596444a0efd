"""Exit codes of kubeai-run."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of kubeai-run. The command's own exit code is never passed on."""

    SUCCEEDED = 0
    USAGE = 64
    UNREACHED = 69
    BACK_OFF_LIMIT = 70
    NAME_IS_LIVE = 73
    TIMED_OUT = 75
    CONFIG = 78
    INTERRUPTED = 130
    TERMINATED = 143

    @property
    def meaning(self) -> str:
        """A one-line description."""
        return _MEANINGS[self]


_MEANINGS = {
    ExitCode.SUCCEEDED: "the command exited with 0",
    ExitCode.USAGE: "the command line, or a file that it names, is invalid",
    ExitCode.UNREACHED: "the supervisor could not be reached at the start, or refused the job",
    ExitCode.BACK_OFF_LIMIT: "the command failed more often than --back-off-limit allows",
    ExitCode.NAME_IS_LIVE: "another kubeai-run with this job name is running",
    ExitCode.TIMED_OUT: "the job waited longer than --max-wait-time for resources",
    ExitCode.CONFIG: "a setting in the environment is invalid",
    ExitCode.INTERRUPTED: "ended by SIGINT",
    ExitCode.TERMINATED: "ended by SIGTERM, or by the supervisor",
}
