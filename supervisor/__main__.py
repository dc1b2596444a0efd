"""Implements the commands `elastic-job-supervisor serve`, `… sign-in`, `… token` and `… notify-test`."""

import argparse
import asyncio
import gc
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from servicekit import failpoints
from servicekit.clock import Clock
from servicekit.commands import SuggestingParser, SysExit, add_completion, print_completion
from servicekit.files import write_private
from servicekit.lifecycle import RootTaskEnded, run
from servicekit.logs import configure
from servicekit.settings import SettingsError, describe, load
from servicekit.tls import CertificateUnusable
from supervisor.domain.ids import NAME_RULE, is_name
from supervisor.identity.tokens import Operator, SecretError, Tokens, Viewer
from supervisor.leadership.errors import LeadershipError, LeadershipLost
from supervisor.pki.keys import KeysError
from supervisor.settings import PREFIX, Settings, create_data_dir
from supervisor.store.interface import StoreError

_COLLECT_EVERY = 50_000
_FAILED = 1
_MAX_DAYS = 36500
_NEVER = "never"
_SERVICE_DAYS, _PERSON_DAYS = 365.0, 30.0
"""A token in a file that a service reads is renewed with the machine's other credentials; a person's is easily lost."""
_DAY_SECONDS = 86400
_LINK_MINUTES, _MAX_LINK_MINUTES = 15.0, 1440.0
_EXIT_CODES = """\
exit codes:
  0   done, or stopped by a signal
  1   could not start serving, or failed
  64  wrong usage
  75  no longer the leader: start it again as a standby
  78  wrong settings
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedCommand:
    """A command that another package adds to `elastic-job-supervisor`."""

    name: str
    help: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def main(arguments: Sequence[str] | None = None, added: Sequence[AddedCommand] = ()) -> int:
    """Runs the command and returns its exit code, see `--help`."""
    given = _parser(added).parse_args(arguments)
    if print_completion(given):
        return 0
    for each in added:
        if given.command == each.name:
            return each.run(given)
    try:
        settings = load(Settings, PREFIX, os.environ)
        return _COMMANDS[given.command](settings, given)
    except SettingsError as error:
        return _complain(str(error), SysExit.CONFIG)
    except (StoreError, SecretError, KeysError, CertificateUnusable, LeadershipError, OSError) as error:
        return _complain(_message(error), _FAILED)
    except RootTaskEnded as ended:
        return _ended(ended)


def _ended(ended: RootTaskEnded) -> int:
    cause = ended.__cause__
    while isinstance(cause, RootTaskEnded):  # A leader's root tasks run within one root task of the process.
        cause = cause.__cause__
    if isinstance(cause, LeadershipLost):
        return _complain(str(cause), SysExit.TEMPFAIL)
    if not isinstance(cause, OSError):
        raise ended  # A bug: its traceback helps.
    return _complain(_message(cause), _FAILED)


def _message(error: Exception) -> str:
    """Returns the error's text; for an error of the operating system, the file and the reason."""
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def _parser(added: Sequence[AddedCommand]) -> SuggestingParser:
    parser = SuggestingParser(
        prog="elastic-job-supervisor",
        epilog=f"{_EXIT_CODES}\nSettings, from the environment:\n\n{describe(Settings, PREFIX)}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_version()
    commands = parser.add_subparsers(dest="command", required=True)
    add_completion(parser, commands)
    commands.add_parser("serve", help="serve agents, launchers and training processes")
    for each in added:
        each.add_arguments(commands.add_parser(each.name, help=each.help))
    commands.add_parser("notify-test", help="send a test message to every target of NOTIFICATIONS_FILE")
    link = commands.add_parser("sign-in", help="print a link that signs one browser in to the status page, once")
    link.add_argument(
        "--name",
        type=_name,
        help="of the person, who may also steer jobs, drain nodes and hold drills (default: a viewer)",
    )
    link.add_argument("--url", help="of the page, as the browser sees it (default: HTTP_ADDRESS)")
    link.add_argument(
        "--minutes", type=_minutes, default=_LINK_MINUTES, help=f"until the link expires (default: {_LINK_MINUTES:g})"
    )
    kinds = commands.add_parser("token", help="make a token").add_subparsers(dest="kind", required=True)
    agent = kinds.add_parser("agent", help="a token for the agent of one node")
    agent.add_argument("--node", required=True, type=_name)
    launcher = kinds.add_parser("launcher", help="a token for one launcher")
    launcher.add_argument("--name", required=True, type=_name)
    viewer = kinds.add_parser("viewer", help="a token that may read the status")
    operator = kinds.add_parser("operator", help="a token that may also steer jobs, drain nodes and hold drills")
    operator.add_argument("--name", required=True, type=_name)
    for kind, days in (
        (agent, _SERVICE_DAYS),
        (launcher, _SERVICE_DAYS),
        (viewer, _PERSON_DAYS),
        (operator, _PERSON_DAYS),
    ):
        kind.add_argument(
            "--days", type=_days, default=days, help=f"days until the token expires, or {_NEVER} (default: {days:g})"
        )
        kind.add_argument(
            "--out", type=Path, metavar="FILE", help="write the token to a file of mode 0600 (default: print it)"
        )
    return parser


def _name(text: str) -> str:
    if not is_name(text):
        raise argparse.ArgumentTypeError(f"a name must have {NAME_RULE}")
    return text


def _days(text: str) -> float | None:
    if text == _NEVER:
        return None
    try:
        days = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of days, nor {_NEVER!r}") from None
    if not 0 < days <= _MAX_DAYS:
        raise argparse.ArgumentTypeError(f"must be more than 0 and at most {_MAX_DAYS} days")
    return days


def _minutes(text: str) -> float:
    try:
        minutes = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of minutes") from None
    if not 0 < minutes <= _MAX_LINK_MINUTES:
        raise argparse.ArgumentTypeError(f"must be more than 0 and at most {_MAX_LINK_MINUTES:g} minutes")
    return minutes


def _failpoint(text: str) -> failpoints.Trigger | None:
    if not text:
        return None
    # Imported here: nothing but tests asks for it.
    from supervisor.jobs import registry  # noqa: PLC0415

    try:
        return failpoints.parse(text, registry.FAILPOINTS)
    except ValueError as error:
        raise SettingsError(f"{PREFIX}FAILPOINT", str(error)) from error


def _serve(settings: Settings, _given: argparse.Namespace) -> int:
    # gRPC would log a line for each peer whose handshake fails; errors that matter are raised.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    # Imported here: the token command needs no servers, and gRPC reads the variable above when it is imported.
    import uvloop  # noqa: PLC0415

    from supervisor.wiring.startup import serve  # noqa: PLC0415

    configure(settings.log_format, settings.log_level)
    failpoints.arm(_failpoint(settings.failpoint))
    # The garbage collector took 22 % of the time while 10,000 streams opened, as it traversed their objects repeatedly.
    gc.set_threshold(_COLLECT_EVERY, *gc.get_threshold()[1:])
    # A TLS stream costs 35 KB on uvloop and 289 KB on the standard loop.
    return run(lambda: serve(settings), uvloop.new_event_loop)


def _token(settings: Settings, given: argparse.Namespace) -> int:
    tokens = _tokens(settings)
    until = None if given.days is None else Clock().now() + given.days * _DAY_SECONDS
    match given.kind:
        case "agent":
            token = tokens.agent(given.node, until)
        case "launcher":
            token = tokens.launcher(given.name, until)
        case "operator":
            token = tokens.operator(given.name, until)
        case _:
            token = tokens.viewer(until)
    if given.out is None:
        sys.stdout.write(token + "\n")
    else:
        write_private(given.out, token + "\n")
    if until is None:
        expiry = "never expires. Whoever gets hold of it can use it until the supervisor's secret is replaced."
    else:
        day = datetime.fromtimestamp(until, UTC).strftime("%Y-%m-%d %H:%M UTC")
        expiry = f"expires on {day}. Create another one before then; --days sets another lifetime."
    sys.stderr.write(f"elastic-job-supervisor: This token {expiry}\n")
    return 0


def _sign_in(settings: Settings, given: argparse.Namespace) -> int:
    who = Viewer() if given.name is None else Operator(name=given.name)
    link = _tokens(settings).link(who, given.url or settings.page_url, Clock().now(), given.minutes * 60)
    sys.stdout.write(link + "\n")
    sys.stderr.write(
        f"elastic-job-supervisor: Open it within {given.minutes:g} minutes: it signs in one browser, once.\n"
    )
    return 0


def _tokens(settings: Settings) -> Tokens:
    if settings.keys_secret:
        # Imported here: a stand-alone supervisor does not need the Kubernetes client.
        from supervisor.wiring import keys  # noqa: PLC0415

        configure(settings.log_format, settings.log_level)  # Logs go to stderr: only the token may be on stdout.
        return asyncio.run(keys.tokens(settings))
    create_data_dir(settings.data_dir)
    return Tokens.load(settings.data_dir)


def _notify_test(settings: Settings, _given: argparse.Namespace) -> int:
    # Imported here: the other commands need no client.
    from supervisor.observability.notifications.delivery import send_trial  # noqa: PLC0415
    from supervisor.wiring.startup import load_notifications  # noqa: PLC0415

    config = load_notifications(settings)
    if config is None:
        raise SettingsError(f"{PREFIX}NOTIFICATIONS_FILE", "names no file, so there are no targets")
    results = asyncio.run(send_trial(config, settings.notifications_timeout_seconds, settings.notifications_proxy))
    for target, reason in results.items():
        sys.stdout.write(f"{target}: {f'failed: {reason}' if reason else 'sent'}\n")
    return _FAILED if any(results.values()) else 0


_COMMANDS = {"serve": _serve, "sign-in": _sign_in, "token": _token, "notify-test": _notify_test}


def _complain(message: str, code: int) -> int:
    sys.stderr.write(f"elastic-job-supervisor: {message}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
