"""Exit codes and argument parsing that all commands share; the codes are those of sysexits.h."""

import argparse
import sys
from enum import IntEnum
from typing import NoReturn


class SysExit(IntEnum):
    """Exit codes that all commands share."""

    USAGE = 64
    """The command line is wrong."""
    TEMPFAIL = 75
    """A temporary failure: start the command again."""
    CONFIG = 78
    """A setting in the environment is wrong."""


class CommandParser(argparse.ArgumentParser):
    """Exits with 64 on a wrong command line."""

    def error(self, message: str) -> NoReturn:  # noqa: D102 - the library's
        self.print_usage(sys.stderr)
        self.exit(SysExit.USAGE, f"{self.prog}: {message}\n")
