"""Reads a supervisor's address, and the secret that signs tokens, from its data directory."""

import fcntl
import getpass
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from job_supervisor.cli.errors import CliUsageError, DeniedError, UnreachableError
from supervisor.identity.tokens import SECRET_FILE, SecretError, Tokens

ENDPOINTS_FILE = "endpoints.json"
LOCK_FILE = "dev.lock"
"""`dev` holds a lock on this file while it runs. The kernel releases it, however the process ends."""

_TOKEN_SECONDS = 60.0


class ServedEndpoints(msgspec.Struct, frozen=True):
    """The addresses of a supervisor, as it writes them into its data directory."""

    http: str
    grpc: str = ""


def serves(directory: Path) -> bool:
    """Whether a supervisor has ever served from this data directory."""
    return (directory / ENDPOINTS_FILE).exists()


def endpoints(directory: Path) -> ServedEndpoints:
    """Reads the addresses of the supervisor that serves, or served last, from this data directory.

    Raises:
        UnreachableError: No supervisor has served from it.
        DeniedError: The file with the address may not be read.
        CliUsageError: That file is damaged.
    """
    try:
        return msgspec.json.decode((directory / ENDPOINTS_FILE).read_bytes(), type=ServedEndpoints)
    except FileNotFoundError as error:
        raise UnreachableError(f"No supervisor has served from {directory}: there is no {ENDPOINTS_FILE}.") from error
    except PermissionError as error:
        raise DeniedError(_not_yours(directory)) from error
    except (OSError, msgspec.MsgspecError) as error:
        raise CliUsageError(f"{directory / ENDPOINTS_FILE} cannot be read: {error}") from error


def token_maker(directory: Path) -> Callable[[], str]:
    """Returns a function that makes an operator's token, valid for a minute.

    Raises:
        DeniedError: The secret may not be read.
        UnreachableError: There is no secret.
    """
    try:
        if not (directory / SECRET_FILE).exists():  # `Tokens.load` would create one.
            raise UnreachableError(f"There is no {SECRET_FILE} in {directory}: no supervisor has been started there.")
        tokens = Tokens.load(directory)
    except PermissionError as error:
        raise DeniedError(_not_yours(directory)) from error
    except SecretError as error:
        raise DeniedError(f"{error}.") from error
    return lambda: tokens.operator(whoami(), time.time() + _TOKEN_SECONDS)


def token_file(file: Path) -> Callable[[], str]:
    """Returns a function that reads the token again at each call, because another program may renew the file."""

    def read() -> str:
        try:
            token = file.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise CliUsageError(f"The token cannot be read: {error}") from error
        if not token:
            raise CliUsageError(f"{file} is empty: it should contain a token.")
        return token

    return read


def whoami() -> str:
    """Returns the name of the user who runs the command, for the log and the notice."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # A user id without a name, as containers have.
        name = "somebody"
    return name if name.isprintable() else "somebody"


def _not_yours(directory: Path) -> str:
    return (
        f"You may not read {directory}. Run this command as the supervisor's user, or use --address and --token-file "
        "with a token from the supervisor's administrator."
    )


def default_directory(environ: Mapping[str, str]) -> Path:
    """Returns the directory where `dev` puts its files without --data-dir."""
    state = environ.get("XDG_STATE_HOME") or f"{environ.get('HOME') or '~'}/.local/state"
    return Path(state).expanduser() / "elastic-job-supervisor" / "dev"


def is_running(directory: Path) -> bool:
    """Whether a `dev` uses the directory now."""
    try:
        with (directory / LOCK_FILE).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # There is no such file, or it is another user's.
        return False
    return False
