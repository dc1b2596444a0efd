"""What can go wrong for somebody at a terminal, each with its exit code and a sentence that says what to do."""

from enum import IntEnum


class ExitCode(IntEnum):
    """How the command ends; those above 63 are as in sysexits.h."""

    DONE = 0
    USAGE = 64
    UNKNOWN = 66
    UNREACHABLE = 69
    NOT_NOW = 75
    NOT_UNDERSTOOD = 76
    DENIED = 77
    INTERRUPTED = 130


class CliError(Exception):
    """The message is for people, and complete."""

    code = ExitCode.NOT_UNDERSTOOD


class UsageError(CliError):
    """Say it another way."""

    code = ExitCode.USAGE


class UnknownError(CliError):
    """There is no such job, node or pod."""

    code = ExitCode.UNKNOWN


class UnreachableError(CliError):
    """Nobody answers there."""

    code = ExitCode.UNREACHABLE


class NotNowError(CliError):
    """Try again later."""

    code = ExitCode.NOT_NOW


class NotUnderstoodError(CliError):
    """Whoever answers is not to be trusted, or speaks otherwise."""

    code = ExitCode.NOT_UNDERSTOOD


class DeniedError(CliError):
    """Whoever asks may not."""

    code = ExitCode.DENIED
