"""How all commands report wrong usage and wrong settings: with the exit codes of sysexits.h."""

import argparse
import sys
from enum import IntEnum
from typing import NoReturn


class SysExit(IntEnum):
    """Exit codes that all commands share."""

    USAGE = 64
    """A command line that is wrong."""
    TEMPFAIL = 75
    """Start it again."""
    CONFIG = 78
    """A setting of the environment is wrong."""


class CommandParser(argparse.ArgumentParser):
    """Ends with 64 where what was typed is wrong."""

    def error(self, message: str) -> NoReturn:  # noqa: D102 - the library's
        self.print_usage(sys.stderr)
        self.exit(SysExit.USAGE, f"{self.prog}: {message}\n")
