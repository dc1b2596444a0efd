"""How kubeai-run ends."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of kubeai-run; a command's own exit code is never passed on."""

    SUCCEEDED = 0
    USAGE = 64
    UNREACHED = 69
    BACK_OFF_LIMIT = 70
    NAME_IS_LIVE = 73
    TIMED_OUT = 75
    INTERRUPTED = 130
    TERMINATED = 143

    @property
    def meaning(self) -> str:
        """One line for people."""
        return _MEANINGS[self]


_MEANINGS = {
    ExitCode.SUCCEEDED: "the command ended with 0",
    ExitCode.USAGE: "the command line or a file named in it is wrong",
    ExitCode.UNREACHED: "the supervisor was not reached at the start, or refused the job",
    ExitCode.BACK_OFF_LIMIT: "the command failed more often than --back-off-limit allows",
    ExitCode.NAME_IS_LIVE: "another kubeai-run of this job's name is live",
    ExitCode.TIMED_OUT: "the job waited for resources longer than --max-wait-time",
    ExitCode.INTERRUPTED: "ended by SIGINT",
    ExitCode.TERMINATED: "ended by SIGTERM, or by the supervisor",
}
