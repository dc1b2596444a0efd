"""Parses the arguments of all commands: exit codes as in sysexits.h, versions, suggestions and completion."""

import argparse
import difflib
import sys
from collections.abc import Iterator, Sequence
from enum import IntEnum
from importlib import metadata
from typing import Any, NoReturn

_DISTRIBUTION = "elastic-job-supervisor"

SHELLS = ("bash", "zsh", "fish", "tcsh")

_INSTALL = """\
Prints the completion of this command for a shell. To use it in every new shell:

  bash  mkdir -p ~/.local/share/bash-completion/completions
        PROG completion bash > ~/.local/share/bash-completion/completions/PROG
  zsh   PROG completion zsh > "${fpath[1]}/_PROG"
  fish  PROG completion fish > ~/.config/fish/completions/PROG.fish
  tcsh  PROG completion tcsh >> ~/.tcshrc"""


class SysExit(IntEnum):
    """Exit codes that all commands share."""

    USAGE = 64
    """The command line is wrong."""
    TEMPFAIL = 75
    """A temporary failure: start the command again."""
    CONFIG = 78
    """A setting in the environment is wrong."""


class SuggestingParser(argparse.ArgumentParser):
    """Suggests what a misspelt word may mean, and exits with 64 on a wrong command line."""

    def error(self, message: str) -> NoReturn:  # noqa: D102 - the library's
        self.exit(SysExit.USAGE, f"{self.prog}: {message}\nRun `{self.prog} --help` for the usage.\n")

    def add_version(self) -> None:
        """Adds `--version`."""
        shown = f"{self.prog} {metadata.version(_DISTRIBUTION)}"
        self.add_argument("--version", action="version", version=shown, help="print the version and exit")

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:  # noqa: D102 - the library's
        given, unknown = self.parse_known_args(args, namespace)
        if unknown:
            self.error(f"unknown argument {unknown[0]!r}.{_suggestion(unknown[0], list(_options(self)))}")
        return given

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Replaces the library's message, which lists all choices and suggests none."""
        if action.choices is None or value in action.choices:
            return
        choices = [str(each) for each in action.choices]
        meant = _suggestion(str(value), choices) or f" Choose from {', '.join(choices)}."
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 - the library names no public type
            raise argparse.ArgumentError(None, f"unknown {action.dest} {value!r}.{meant}")
        raise argparse.ArgumentError(action, f"{value!r} is not known.{meant}")


def _options(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yields the options of a parser and of its commands."""
    for action in parser._actions:  # noqa: SLF001 - the library has no public list
        yield from action.option_strings
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 - as above
            for command in action.choices.values():
                yield from _options(command)


def _suggestion(word: str, known: Sequence[str]) -> str:
    closest = difflib.get_close_matches(word.partition("=")[0], known, n=1)
    return f" Did you mean {closest[0]!r}?" if closest else ""


def add_completion(root: argparse.ArgumentParser, commands: Any) -> None:
    """Adds the command to `commands`, the subparsers of `root`."""
    command = commands.add_parser(
        "completion",
        help="print the completion for a shell",
        description=_INSTALL.replace("PROG", root.prog),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("shell", metavar="SHELL", choices=SHELLS, help=", ".join(SHELLS))
    command.set_defaults(completed=root)


def print_completion(given: argparse.Namespace) -> bool:
    """Prints the completion if these arguments ask for it, and returns whether they do."""
    if given.command != "completion":
        return False
    import shtab  # noqa: PLC0415 - no other command needs it

    sys.stdout.write(shtab.complete(given.completed, given.shell) + "\n")
    return True
