"""Runs the stand-in as a process until a signal."""

import argparse
import asyncio
import sys

from servicekit.kubernetes.errors import ApiError
from servicekit.kubernetes.server import ApiServer
from servicekit.lifecycle import RootTaskEnded, run, run_tasks, stop_on_signals
from servicekit.logs import LogFormat, configure
from simulator.et_operator.crds import create_crds
from simulator.et_operator.operator import EtOperator
from simulator.et_operator.settings import QUICK, OperatorPace, OperatorSettings

_REQUEST_SECONDS = 10.0


def main(arguments: argparse.Namespace) -> int:
    """Run until a signal. Returns 1 if it ends by itself, like the real one."""
    configure(LogFormat.CONSOLE, "info")
    return run(lambda: _serve(arguments))


async def _serve(arguments: argparse.Namespace) -> int:
    pace = QUICK if arguments.quick else OperatorPace()
    settings = OperatorSettings(pace, frozenset(arguments.flaw), commands=not arguments.no_commands)
    server = await ApiServer.connect(arguments.kubeconfig, _REQUEST_SECONDS)
    stop = asyncio.Event()
    try:
        with stop_on_signals(stop):
            if arguments.define:
                await create_crds(server)
            await run_tasks({"et-operator": EtOperator(server, settings).run}, stop)
    except (RootTaskEnded, ApiError) as error:
        sys.stderr.write(f"et-operator (stand-in): {error.__cause__ or error}\n")
        return 1
    finally:
        await server.close()
    return 0
