"""Defines the errors of the command, each with its exit code and a message that says what to do."""

from enum import IntEnum


class CliExitCode(IntEnum):
    """Codes above 63 are those of sysexits.h."""

    DONE = 0
    USAGE = 64
    FOUND = 65
    UNKNOWN = 66
    UNREACHABLE = 69
    NOT_NOW = 75
    NOT_UNDERSTOOD = 76
    DENIED = 77
    SETTING = 78
    INTERRUPTED = 130


class CliError(Exception):
    """The command fails. The message is complete, and is printed as it is."""

    code = CliExitCode.NOT_UNDERSTOOD


class CliUsageError(CliError):
    """The arguments are wrong."""

    code = CliExitCode.USAGE


class CliSettingError(CliError):
    """A variable of the environment, or a file that it names, is wrong."""

    code = CliExitCode.SETTING


class UnknownError(CliError):
    """There is no such job, node or pod."""

    code = CliExitCode.UNKNOWN


class UnreachableError(CliError):
    """The supervisor or API server does not answer."""

    code = CliExitCode.UNREACHABLE


class NotNowError(CliError):
    """The request cannot be met now. The user tries again later."""

    code = CliExitCode.NOT_NOW


class AnswerNotUnderstoodError(CliError):
    """The command does not trust the server, or does not understand its answer."""

    code = CliExitCode.NOT_UNDERSTOOD


class DeniedError(CliError):
    """A token is wrong, or permissions are missing."""

    code = CliExitCode.DENIED
