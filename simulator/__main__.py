"""`python -m simulator demo`, `replay`, `metadata` and `et-operator`. Each has --help."""

import argparse
import asyncio
import sys
from collections.abc import Sequence

from simulator import demo, replay
from simulator.cloud import control
from simulator.et_operator import command as et_operator


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m simulator", description="A cloud and a job on one machine.")
    commands = parser.add_subparsers(dest="command", required=True)
    demo.add_arguments(
        commands.add_parser("demo", help="replay recorded reclaims against a real job and judge the outcome")
    )
    replay.add_arguments(
        commands.add_parser("replay", help="replay whole traces and synthetic ones and judge each outcome")
    )
    control.add_arguments(
        commands.add_parser("metadata", help="serve the metadata of nodes, to announce and withdraw reclaims by hand")
    )
    et_operator.add_arguments(commands.add_parser("et-operator", help="run a stand-in for et-operator on a cluster"))
    options = parser.parse_args(arguments)
    if options.command == "demo":
        return demo.main(options)
    if options.command == "replay":
        return replay.main(options)
    if options.command == "et-operator":
        from simulator.et_operator import process  # noqa: PLC0415 - only this command needs the client library, which takes 63 MiB

        return process.main(options)
    asyncio.run(control.serve(options.nodes, options.listen, options.control, options.mode, options.cloud))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
