"""`python -m simulator demo`, `replay`, `metadata` and `et-operator`; each explains itself with --help."""

import argparse
import asyncio
import sys
from collections.abc import Sequence

from simulator import demo, replay
from simulator.cloud import control
from simulator.et_operator import command as et_operator


def main(arguments: Sequence[str]) -> int:
    """Run one of the simulator's commands and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m simulator", description="A cloud and a job on one machine.")
    commands = parser.add_subparsers(dest="command", required=True)
    demo.add_arguments(commands.add_parser("demo", help="replay real reclaims against a real job, and judge"))
    replay.add_arguments(commands.add_parser("replay", help="whole traces and made-up ones, judged"))
    control.add_arguments(commands.add_parser("metadata", help="metadata of nodes, to announce and withdraw by hand"))
    et_operator.add_arguments(commands.add_parser("et-operator", help="a stand-in for et-operator, on a cluster"))
    options = parser.parse_args(arguments)
    if options.command == "demo":
        return demo.main(options)
    if options.command == "replay":
        return replay.main(options)
    if options.command == "et-operator":
        from simulator.et_operator import process  # noqa: PLC0415 - the client library is 63 MiB, for this command alone

        return process.main(options)
    asyncio.run(control.serve(options.nodes, options.listen, options.control, options.mode, options.cloud))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
