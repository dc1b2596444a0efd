"""Asks whoever sits at the terminal before something happens to jobs."""

import sys

from job_supervisor.cli.errors import UsageError


def confirm(question: str, refusal: str) -> None:
    """Asks a question on standard error.

    Raises:
        UsageError: The answer is not yes, with `refusal` as its message; or there is no terminal to ask at.
    """
    if not sys.stdin.isatty():
        raise UsageError("This has real effects and needs a confirmation. Without a terminal, pass --yes.")
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise UsageError(refusal)
