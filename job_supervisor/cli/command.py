"""`job-supervisor VERB`, such as `status` or `suspend`, also as `kubectl job-supervisor VERB`."""

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

from job_supervisor.cli import draining, drilling, showing, steering
from job_supervisor.cli.arguments import command_first, parser
from job_supervisor.cli.backend import Backend
from job_supervisor.cli.connect import connect
from job_supervisor.cli.errors import CliError, ExitCode
from job_supervisor.cli.output import complain
from servicekit.commands import print_completion

_PLUGIN = "kubectl-"

_VERBS: Mapping[str, Callable[[Backend, argparse.Namespace], Awaitable[ExitCode]]] = {
    "status": showing.status,
    "explain": showing.explained,
    "history": showing.history,
    "nodes": showing.nodes,
    "suspend": steering.steer,
    "resume": steering.steer,
    "stop": steering.steer,
    "drain": draining.drain,
    "undrain": draining.undrain,
    "simulate": drilling.simulate,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code, an `ExitCode`."""
    plugin = Path(sys.argv[0]).name.startswith(_PLUGIN)
    words = command_first(sys.argv[1:] if arguments is None else arguments)
    given = parser("kubectl job-supervisor" if plugin else "job-supervisor").parse_args(words)
    try:
        if print_completion(given):
            return ExitCode.DONE
        return asyncio.run(_run(given, plugin=plugin))
    except CliError as error:
        complain(str(error))
        return error.code
    except (KeyboardInterrupt, asyncio.CancelledError):
        return ExitCode.INTERRUPTED
    except BrokenPipeError:  # The reader has closed the pipe, and Python would flush standard output at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.DONE


async def _run(given: argparse.Namespace, *, plugin: bool) -> ExitCode:
    task = asyncio.current_task()
    if task is not None:  # SIGTERM acts like Ctrl-C: with --wait, the drill is ended.
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    if given.command == "check":  # A file is checked without any supervisor or cluster.
        # Imported here: no other command needs the rules.
        from job_supervisor.cli import checking  # noqa: PLC0415

        return await checking.check_all(given, lambda: connect(given, os.environ, plugin=plugin))
    async with connect(given, os.environ, plugin=plugin) as backend:
        return await _VERBS[given.command](backend, given)


if __name__ == "__main__":
    sys.exit(main())
