"""What can be typed after `job-supervisor`, and what `--help` says of it."""

import argparse
from pathlib import Path

from servicekit.commands import CommandParser
from supervisor.domain.drill import LONGEST_SECONDS, SHORTEST_SECONDS

DATA_DIR = Path("./job-supervisor-data")
_SHORTEST_INTERVAL = 0.1

_EPILOG = f"""\
where to ask, the first of these that applies:
  --address URL          a supervisor, with --token-file; --ca-file where its CA is not this machine's
  --kubeconfig FILE      a cluster, with your own rights there
  --data-dir DIR         the supervisor that serves from there, with its own secret
  none of them           the environment's SUPERVISOR_CLI_ADDRESS, …_TOKEN_FILE and …_CA_FILE, or
                         JOB_SUPERVISOR_DATA_DIR; {DATA_DIR} if there is one; else the cluster of KUBECONFIG, of this
                         pod, or of ~/.kube/config

exit codes:
  0    done
  64   wrong usage, or a drill that nobody has confirmed
  66   no such job, node or pod
  69   nobody answers there
  75   not now: try again later. `simulate --wait`: a job is not at rest long after the drill
  76   whoever answers has a certificate that is not trusted, or is not understood
  77   not allowed: a wrong token, or missing rights
  130  interrupted; a drill that was waited for is ended first
"""

_SIMULATE = f"""\
A fire drill: the node or pod will be gone in --lead seconds, or so everybody is told, and everything that follows from
it really happens. Processes are told to save, leave or stop; hosts are left out of the launcher's list; jobs that are
left with too few workers save a checkpoint, are suspended and resumed; on a cluster the pod of a worker that was left
out is deleted right before the end. Only the machine stays. It ends by itself at its deadline ({SHORTEST_SECONDS:g} to
{LONGEST_SECONDS:g} s), whatever becomes of this command and of the supervisor; everything that shows it says that it
is a drill. Said again about the same node or pod, it moves the deadline."""


def parser() -> argparse.ArgumentParser:
    """For the whole command; wrong usage ends with 64."""
    form = argparse.RawDescriptionHelpFormatter
    whole = CommandParser(
        prog="job-supervisor",
        description="What is happening to supervised jobs, and why; and fire drills.",
        epilog=_EPILOG,
        formatter_class=form,
    )
    common = CommandParser(add_help=False)
    where = common.add_argument_group("where to ask (see job-supervisor --help)")
    where.add_argument("--address", metavar="URL", help="http://HOST:PORT or https://HOST:PORT of a supervisor")
    where.add_argument("--token-file", type=Path, metavar="FILE", help="holds a viewer's or an operator's token")
    where.add_argument("--ca-file", type=Path, metavar="FILE", help="PEM: the CAs to trust")
    where.add_argument("--data-dir", type=Path, metavar="DIR", help="a supervisor's JOB_SUPERVISOR_DATA_DIR")
    where.add_argument("--kubeconfig", metavar="FILE", help="a cluster")
    where.add_argument("--namespace", "-n", default="", metavar="NAME", help="of a cluster; without: all of them")
    common.add_argument("--output", "-o", choices=("table", "json"), default="table", help="table (default) or json")
    commands = whole.add_subparsers(dest="command", required=True)
    status = commands.add_parser("status", parents=[common], help="all jobs, and what will be reclaimed")
    status.add_argument("--watch", "-w", action="store_true", help="again and again, until Ctrl-C")
    status.add_argument("--interval", type=_interval, default=2.0, metavar="S", help="seconds between (default 2)")
    one = commands.add_parser("explain", parents=[common], help="one job: where it stands, why, and what comes next")
    one.add_argument("job", metavar="JOB", help="its name; on a cluster also NAMESPACE/NAME")
    drill = commands.add_parser(
        "simulate", parents=[common], help="a fire drill", description=_SIMULATE, formatter_class=form
    )
    drill.add_argument("subject", nargs="?", metavar="NODE|POD", help="NAME, node/NAME, pod/NAME, pod/NAMESPACE/NAME")
    drill.add_argument("--lead", type=_lead, default=120.0, metavar="SECONDS", help="120s, 2m or 120 (default 120s)")
    drill.add_argument("--wait", action="store_true", help="tell what happens until it is over; Ctrl-C ends it")
    drill.add_argument("--yes", "-y", action="store_true", help="do not ask")
    drill.add_argument("--end", action="store_true", help="end the drill on it before its time; without one, all")
    return whole


def _interval(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds") from None
    if not _SHORTEST_INTERVAL <= seconds <= LONGEST_SECONDS:
        raise argparse.ArgumentTypeError(f"between {_SHORTEST_INTERVAL:g} and {LONGEST_SECONDS:g} seconds")
    return seconds


def _lead(text: str) -> float:
    units = {"s": 1, "m": 60, "h": 3600}
    number, factor = (text[:-1], units[text[-1]]) if text[-1:] in units else (text, 1)
    try:
        seconds = float(number) * factor
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no time: 120s, 2m or 120") from None
    if not SHORTEST_SECONDS <= seconds <= LONGEST_SECONDS:
        raise argparse.ArgumentTypeError(f"between {SHORTEST_SECONDS:g} and {LONGEST_SECONDS:g} seconds")
    return seconds
