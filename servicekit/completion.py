"""The command `completion SHELL` of a command with subcommands."""

import argparse
import sys
from typing import Any

SHELLS = ("bash", "zsh", "fish", "tcsh")

_INSTALL = """\
Prints the completion of this command for a shell. To use it in every new shell:

  bash  mkdir -p ~/.local/share/bash-completion/completions
        PROG completion bash > ~/.local/share/bash-completion/completions/PROG
  zsh   PROG completion zsh > "${fpath[1]}/_PROG"
  fish  PROG completion fish > ~/.config/fish/completions/PROG.fish
  tcsh  PROG completion tcsh >> ~/.tcshrc"""


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
