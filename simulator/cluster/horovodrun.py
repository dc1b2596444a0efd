"""`horovodrun`, as far as TrainingJobs use it: runs the simulator's elastic launcher."""

import argparse
import os
import sys
from collections.abc import Sequence


def launcher_command(arguments: Sequence[str]) -> list[str]:
    """Translate horovodrun's arguments to the elastic launcher's. Exits the process if they are invalid."""
    parser = argparse.ArgumentParser(prog="horovodrun")
    parser.add_argument("-np", type=int, required=True)
    parser.add_argument("--min-np", type=int, required=True)
    parser.add_argument("--max-np", type=int, required=True)
    parser.add_argument("--host-discovery-script", required=True)
    parser.add_argument("--elastic-timeout", default="600")
    parser.add_argument("--log-level")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args(arguments)
    launcher = [sys.executable, "-m", "simulator.elastic.launcher", "--start-workers", str(options.np)]
    launcher += ["--min-workers", str(options.min_np), "--max-workers", str(options.max_np)]
    launcher += ["--discovery", options.host_discovery_script, "--below-min-timeout", options.elastic_timeout]
    return [*launcher, "--", sys.executable, "-m", "simulator.cluster.ssh", "--", *options.command]


if __name__ == "__main__":
    line = launcher_command(sys.argv[1:])
    os.execv(line[0], line)  # noqa: S606 - our own launcher
