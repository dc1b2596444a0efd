"""The errors of the command, each with its exit code and a message that says what to do."""

from enum import IntEnum


class ExitCode(IntEnum):
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
    """The message is complete, and printed as it is."""

    code = ExitCode.NOT_UNDERSTOOD


class UsageError(CliError):
    """The arguments are wrong."""

    code = ExitCode.USAGE


class SettingError(CliError):
    """A variable of the environment, or a file that it names, is wrong."""

    code = ExitCode.SETTING


class UnknownError(CliError):
    """There is no such job, node or pod."""

    code = ExitCode.UNKNOWN


class UnreachableError(CliError):
    """The supervisor or API server does not answer."""

    code = ExitCode.UNREACHABLE


class NotNowError(CliError):
    """Try again later."""

    code = ExitCode.NOT_NOW


class NotUnderstoodError(CliError):
    """The server is not trusted, or its answer is not understood."""

    code = ExitCode.NOT_UNDERSTOOD


class DeniedError(CliError):
    """A token is wrong, or permissions are missing."""

    code = ExitCode.DENIED
