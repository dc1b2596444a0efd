"""Defines the arguments and the help text of `job-supervisor`."""

import argparse
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from job_supervisor.cli.output import Output
from servicekit.commands import SuggestingParser, add_completion
from supervisor.domain.capacity import MachinePool
from supervisor.domain.notice import LONGEST_DRAIN_SECONDS, LONGEST_SECONDS, SHORTEST_SECONDS

DATA_DIR = Path("./job-supervisor-data")
_SHORTEST_INTERVAL = 0.1
_FORM = argparse.RawDescriptionHelpFormatter

_EPILOG = f"""\
where the command connects to, the first of these that applies:
  --address URL          a supervisor; needs --token-file, and --ca-file if this machine does not trust its CA
  --kubeconfig FILE, --context NAME
                         a cluster, with your own permissions
  --data-dir DIR         the supervisor that uses this data directory, with a token signed with its secret
  none of them           SUPERVISOR_CLI_ADDRESS, …_TOKEN_FILE and …_CA_FILE, or JOB_SUPERVISOR_DATA_DIR, of the
                         environment; {DATA_DIR} if it exists; a running `elastic-job-supervisor dev`; else
                         the cluster of KUBECONFIG, of this pod, or of ~/.kube/config.
                         `kubectl job-supervisor` always takes the cluster

exit codes:
  0    done
  64   wrong usage, or what was not confirmed
  65   check has found an error, or with --strict anything at all
  66   no such job, node or pod, or a job that has ended; for check also no such file, or no job in it
  69   no answer from that address
  75   not possible now, try again later. With --wait: a job has not come to rest in time, or has saved nothing
  76   the server's certificate is not trusted, or its answer is not understood
  77   not allowed: a wrong token, or missing permissions
  78   a variable of the environment is wrong, or the kubeconfig is not usable
  130  interrupted by Ctrl-C; `simulate --wait` ends the drill first
"""

_SIMULATE = f"""\
A fire drill announces that a node or pod will be reclaimed in --lead seconds, and everything that follows from a
reclaim really happens. Processes are told to save, leave or stop. Hosts are excluded from the launcher's list. Jobs
with too few remaining workers save a checkpoint, are suspended and resume. On a cluster, the pod of an excluded worker
is deleted right before the deadline. Only the machine stays. The drill ends by itself at its deadline,
{SHORTEST_SECONDS:g} to {LONGEST_SECONDS:g} s from now, whatever happens to this command and to the supervisor.
Everything that shows it marks it as a drill. A second drill on the same node or pod moves the deadline."""

_STEERING = {
    "suspend": (
        "save a job and keep it suspended",
        """\
The processes of the job save a checkpoint as before a reclaim. Then the job is suspended, releases its hosts, and stays
suspended until `job-supervisor resume`. Its waiting time does not run. A job that has no run is kept from starting.""",
    ),
    "resume": (
        "let a suspended job run again",
        """\
Takes back what `suspend` has asked for, and `stop` as long as the job has not ended. The job resumes from its
checkpoint as soon as there are enough hosts.""",
    ),
    "stop": (
        "save a job and end it for good",
        """\
The processes of the job save a checkpoint as before a reclaim. Then the job is ended and not started again. Somebody
who starts a job of that name later continues from the checkpoint.""",
    ),
}

_DRAIN = """\
Announces that a node goes in --lead seconds, as a cloud would: jobs leave it, saved first where too few workers remain,
and processes that are still there are told to leave right before. The node is not used again until
`job-supervisor undrain`, whatever its own metadata say. On a cluster it is also cordoned."""

_CHECK = """\
Reads jobs and says what would go wrong at a reclaim, and the fix. A running job of the cluster or of a supervisor is
read as it is there, with what the supervisor has measured. Nothing is changed. docs/guide/check.md lists the kinds of
jobs that are known, and explains each rule."""

LONGEST_AGO_SECONDS = 3660 * 86_400.0
MOST_ENTRIES = 1_000_000
LONGEST_WINDOW_SECONDS = 60.0
"""As the setting has it."""

_HISTORY = """\
Shows what happened, in the order of time: notices and their ends, decisions with their reasons, rank 0's answers,
suspensions. A supervisor keeps a record of it for weeks; a cluster's API tells what it still knows of it."""

_REPORT = """\
Shows where the worker-hours went that jobs wanted: how many they held, and how many of those trained. The supervisor
counts while it leads, and keeps hours for as long as its record. One job is compared with other ways to handle the same
reclaims, which may take a minute; several jobs are with --compare. docs/guide/report.md says what each column means."""

_PLAN = """\
Simulates one job over its own history, as the record has it: as it is, with each change alone, and with all of them if
each has one value. An option that is repeated gives a row for each value. The best time between two checkpoints is that
for the losses which came too suddenly to save. docs/guide/report.md says how far to trust it."""


def parser(prog: str = "job-supervisor") -> SuggestingParser:
    root = SuggestingParser(
        prog=prog,
        description="Shows what is happening to supervised jobs and why, suspends and stops them, and holds drills.",
        epilog=_EPILOG,
        formatter_class=_FORM,
    )
    root.add_version()
    common = _common()
    commands = root.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _add_status(commands, common)
    explain = commands.add_parser(
        "explain", parents=[common], help="show one job: its phase, the reason and what comes next"
    )
    explain.add_argument("job", metavar="JOB", help="name of the job; on a cluster also NAMESPACE/NAME")
    history = commands.add_parser("history", parents=[common], help="show what happened", description=_HISTORY)
    what = history.add_mutually_exclusive_group()
    what.add_argument("job", metavar="JOB", nargs="?", help="one job, also one that is gone (default: all)")
    what.add_argument("--node", metavar="NAME", help="what concerned one node")
    what.add_argument(
        "--pool", type=_pool, metavar="CLOUD/ZONE/TYPE", help="what concerned the nodes of one capacity pool"
    )
    history.add_argument("--source", metavar="NAME", help="notices of one source, such as aliyun, and their ends")
    history.add_argument("--since", type=_ago, metavar="DURATION", help="how far back, such as 12h or 30d")
    history.add_argument("--no-drills", dest="drills", action="store_false", help="leave out drills")
    history.add_argument("--limit", type=_count, default=1000, metavar="N", help="the latest N (default: %(default)s)")
    history.add_argument(
        "--from", dest="file", type=Path, metavar="FILE", help="read what `-o json` has printed earlier"
    )
    report = commands.add_parser(
        "report", parents=[common], help="show where worker-hours went", description=_REPORT, formatter_class=_FORM
    )
    report.add_argument("job", metavar="JOB", nargs="?", help="one job, also one that is gone (default: all)")
    _add_span(report)
    report.add_argument(
        "--limit", type=_count, default=20, metavar="N", help="the N largest jobs (default: %(default)s)"
    )
    report.add_argument(
        "--by",
        choices=["job", "kind", "pool"],
        default="job",
        help="a row for each job, kind of job, or capacity pool (default: %(default)s)",
    )
    report.add_argument(
        "--compare",
        action="store_true",
        help="also compare several jobs with other ways to handle the same reclaims, which takes up to a minute",
    )
    report.add_argument("--prices", metavar="FILE", help="what machines cost, to add what it all did (YAML)")
    _add_plan(commands, common)
    nodes = commands.add_parser("nodes", parents=[common], help="show each node: agent, sources, notice, jobs")
    for reading in (explain, history, nodes):
        _add_members(reading)
    _add_steering(commands, common)
    _add_drains(commands, common)
    _add_simulate(commands, common)
    _add_check(commands, common)
    add_completion(root, commands)
    return root


def command_first(words: Sequence[str]) -> list[str]:
    """Moves the options that every command has behind the command, because kubectl accepts them on either side."""
    values, moved = {}, list[str]()
    for action in _common()._actions:  # noqa: SLF001 - the library has no public list
        values.update(dict.fromkeys(action.option_strings, action.nargs != 0))
    rest = list(words)
    while rest and (name := rest[0].partition("=")[0]) in values:
        taken = 2 if values[name] and name == rest[0] else 1
        moved, rest = [*moved, *rest[:taken]], rest[taken:]
    return [*rest[:1], *moved, *rest[1:]]


def _common() -> SuggestingParser:
    common = SuggestingParser(add_help=False)
    connection = common.add_argument_group("connection (see job-supervisor --help)")
    connection.add_argument("--address", metavar="URL", help="http://HOST:PORT or https://HOST:PORT of a supervisor")
    connection.add_argument(
        "--token-file", type=Path, metavar="FILE", help="file with a viewer's or an operator's token"
    )
    connection.add_argument("--ca-file", type=Path, metavar="FILE", help="PEM: the CAs to trust")
    connection.add_argument("--data-dir", type=Path, metavar="DIR", help="a supervisor's JOB_SUPERVISOR_DATA_DIR")
    connection.add_argument("--kubeconfig", metavar="FILE", help="kubeconfig of a cluster")
    connection.add_argument("--context", metavar="NAME", help="context of the kubeconfig (default: its current one)")
    where = connection.add_mutually_exclusive_group()
    where.add_argument("--namespace", "-n", default="", metavar="NAME", help="only the jobs of one namespace")
    where.add_argument("--all-namespaces", "-A", action="store_true", help="the jobs of all namespaces (default)")
    common.add_argument(
        "--output",
        "-o",
        type=Output.parse,
        default=Output.parse("table"),
        metavar="FORM",
        help="table (default), wide, json, yaml, name or jsonpath=TEMPLATE",
    )
    return common


def _add_members(command: Any) -> None:
    command.add_argument(
        "--members",
        "-M",
        action="store_true",
        help="read all member clusters of the hub that the kubeconfig names, through the hub",
    )


def _add_status(commands: Any, common: SuggestingParser) -> None:
    status = commands.add_parser("status", parents=[common], help="show all jobs, active notices and agents")
    _add_members(status)
    status.add_argument(
        "--selector", "-l", default="", metavar="LABELS", help="only jobs with these labels, on a cluster: a=b,c!=d"
    )
    watch = status.add_mutually_exclusive_group()
    watch.add_argument("--watch", "-w", action="store_true", help="one line for each change, until Ctrl-C")
    watch.add_argument("--live", action="store_true", help="repaint the screen, until Ctrl-C")
    status.add_argument(
        "--interval",
        type=_interval,
        default=2.0,
        metavar="S",
        help="with --watch or --live: seconds between two looks (default 2)",
    )


def _add_steering(commands: Any, common: SuggestingParser) -> None:
    for name, (summary, description) in _STEERING.items():
        verb = commands.add_parser(name, parents=[common], help=summary, description=description, formatter_class=_FORM)
        verb.add_argument("job", metavar="JOB", help="name of the job; on a cluster also NAMESPACE/NAME")
        verb.add_argument("--wait", action="store_true", help="show what happens until it is done")
        verb.add_argument(
            "--timeout",
            type=_seconds,
            default=600.0,
            metavar="SECONDS",
            help="with --wait: 90s, 10m or 90 (default 10m)",
        )
        if name != "resume":
            verb.add_argument("--reason", default="", metavar="TEXT", help="why, for whoever looks at the job")
            verb.add_argument("--yes", "-y", action="store_true", help="do not ask for confirmation")


def _add_drains(commands: Any, common: SuggestingParser) -> None:
    drain = commands.add_parser(
        "drain",
        parents=[common],
        help="have jobs leave a node until it is undrained",
        description=_DRAIN,
        formatter_class=_FORM,
    )
    drain.add_argument("node", metavar="NODE", help="stand-alone the name of the node's agent")
    drain.add_argument("--lead", type=_lead, default=300.0, metavar="SECONDS", help="300s, 5m or 300 (default 5m)")
    drain.add_argument("--reason", default="", metavar="TEXT", help="why, for whoever looks at the node")
    drain.add_argument("--wait", action="store_true", help="show what happens until no job uses the node")
    drain.add_argument(
        "--timeout", type=_seconds, default=600.0, metavar="SECONDS", help="with --wait: 90s, 10m or 90 (default 10m)"
    )
    drain.add_argument("--yes", "-y", action="store_true", help="do not ask for confirmation")
    undrain = commands.add_parser("undrain", parents=[common], help="let jobs use a drained node again")
    undrain.add_argument("node", metavar="NODE", help="the node")


def _add_simulate(commands: Any, common: SuggestingParser) -> None:
    drill = commands.add_parser(
        "simulate", parents=[common], help="run a fire drill", description=_SIMULATE, formatter_class=_FORM
    )
    drill.add_argument("subject", nargs="?", metavar="NODE|POD", help="NAME, node/NAME, pod/NAME, pod/NAMESPACE/NAME")
    drill.add_argument("--lead", type=_seconds, default=120.0, metavar="SECONDS", help="120s, 2m or 120 (default 120s)")
    drill.add_argument("--wait", action="store_true", help="show what happens until the drill is over; Ctrl-C ends it")
    drill.add_argument("--yes", "-y", action="store_true", help="do not ask for confirmation")
    drill.add_argument("--end", action="store_true", help="end the drill on NODE|POD early; without NODE|POD, end all")


def _add_span(command: Any) -> None:
    command.add_argument(
        "--since", type=_when, default="7d", metavar="WHEN", help="a day, or how far back, such as 30d (default: 7d)"
    )
    command.add_argument("--until", type=_when, metavar="WHEN", help="likewise, such as 2026-11-01 (default: now)")


def _add_plan(commands: Any, common: SuggestingParser) -> None:
    plan = commands.add_parser(
        "plan",
        parents=[common],
        help="show what one job would have made of its own history if something were different",
        description=_PLAN,
        formatter_class=_FORM,
    )
    plan.add_argument("job", metavar="JOB", help="one job, also one that is gone")
    _add_span(plan)
    options: tuple[tuple[str, str, Callable[[str], float | str], str, str], ...] = (
        ("--min-workers", "least", _count, "N", "the fewest workers with which it trains"),
        ("--max-workers", "most", _count, "N", "the workers that it wants, no more than before"),
        ("--lead", "lead", _seconds, "DURATION", "how long before a host goes its notice comes"),
        ("--window", "window", _window, "SECONDS", "the supervisor's window for the notices of a group"),
        ("--checkpoint-every", "save_every", _ago, "DURATION", "how often it saves without a notice"),
        ("--checkpoint", "checkpoint", _seconds, "DURATION", "how long a checkpoint takes"),
        ("--restart", "restart", _seconds, "DURATION", "from a start of all processes to their first step"),
        ("--pool", "pool", _pool, "CLOUD/ZONE/TYPE", "hosts that last as long as those of that capacity pool did"),
    )
    for option, name, read, unit, text in options:
        plan.add_argument(option, dest=name, type=read, action="append", metavar=unit, help=text)
    ways = plan.add_mutually_exclusive_group()
    ways.add_argument(
        "--in-process", action="store_const", const=[True], help="the processes survive a change of hosts"
    )
    ways.add_argument(
        "--by-restarts",
        dest="in_process",
        action="store_const",
        const=[False],
        help="a change of hosts is a checkpoint and a restart",
    )


def _add_check(commands: Any, common: SuggestingParser) -> None:
    check = commands.add_parser(
        "check",
        parents=[common],
        help="say what would go wrong at a reclaim of a job",
        description=_CHECK,
        formatter_class=_FORM,
    )
    check.add_argument(
        "targets",
        nargs="*",
        metavar="FILE|JOB",
        help="a file with manifests, - for standard input, KIND/NAME on the cluster, or the name of a supervised job",
    )
    check.add_argument(
        "--command", dest="line", metavar="LINE", help="check a command line of kubeai-run, torchrun or horovodrun"
    )
    check.add_argument(
        "--checkpoint",
        type=_seconds,
        metavar="SECONDS",
        help="how long a checkpoint takes: 90s, 2m or 90 (default: as measured, else 30s)",
    )
    check.add_argument("--strict", action="store_true", help="exit with 65 also for warnings and hints")


def _interval(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds") from None
    if not _SHORTEST_INTERVAL <= seconds <= LONGEST_SECONDS:
        raise argparse.ArgumentTypeError(f"must be between {_SHORTEST_INTERVAL:g} and {LONGEST_SECONDS:g} seconds")
    return seconds


def _seconds(text: str) -> float:
    return _duration(text, LONGEST_SECONDS)


def _ago(text: str) -> float:
    return _duration(text, LONGEST_AGO_SECONDS)


def _when(text: str) -> float:
    """Reads the beginning of a day here, or how far back an instant is; returns Unix seconds."""
    try:
        return datetime.strptime(text, "%Y-%m-%d").astimezone().timestamp()
    except ValueError:
        return time.time() - _ago(text)


def _count(text: str) -> int:
    if not text.isdecimal() or not 0 < (number := int(text)) <= MOST_ENTRIES:
        raise argparse.ArgumentTypeError(f"must be a number between 1 and {MOST_ENTRIES}")
    return number


def _pool(text: str) -> str:
    try:
        return MachinePool.named(text).name
    except ValueError as error:
        raise argparse.ArgumentTypeError("a capacity pool is named CLOUD/ZONE/TYPE") from error


def _window(text: str) -> float:
    return _duration(text, LONGEST_WINDOW_SECONDS)


def _lead(text: str) -> float:
    return _duration(text, LONGEST_DRAIN_SECONDS)


def _duration(text: str, longest: float) -> float:
    units = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
    number, factor = (text[:-1], units[text[-1]]) if text[-1:] in units else (text, 1)
    try:
        seconds = float(number) * factor
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration such as 120s, 2m or 120") from None
    if not SHORTEST_SECONDS <= seconds <= longest:
        raise argparse.ArgumentTypeError(f"must be between {SHORTEST_SECONDS:g} and {longest:g} seconds")
    return seconds
