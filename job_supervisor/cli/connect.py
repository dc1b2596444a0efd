"""Chooses and opens the backend, from the arguments and the environment."""

import argparse
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from job_supervisor.cli import data_dir as standalone
from job_supervisor.cli.arguments import DATA_DIR
from job_supervisor.cli.backend import Backend
from job_supervisor.cli.data_dir import default_directory, is_running
from job_supervisor.cli.errors import SettingError, UsageError
from job_supervisor.cli.http_backend import Address, HttpBackend

_ADDRESS, _CA_FILE = "SUPERVISOR_CLI_ADDRESS", "SUPERVISOR_CLI_CA_FILE"
_TOKEN_FILE = "SUPERVISOR_CLI_TOKEN_FILE"  # noqa: S105 - the name of a variable


@asynccontextmanager
async def connect(
    given: argparse.Namespace, environ: Mapping[str, str], *, plugin: bool = False
) -> AsyncIterator[Backend]:
    """Opens the first backend that applies, in the order that `--help` lists.

    A `plugin` of kubectl asks the cluster unless an option names something else.

    Raises:
        UsageError: The arguments are wrong or incomplete.
        UnreachableError: No supervisor has served from the data directory.
        DeniedError: The supervisor's secret may not be read.
    """
    cluster_named = given.kubeconfig or given.context or (plugin and not given.address and not given.data_dir)
    address = given.address or (None if cluster_named or given.data_dir else environ.get(_ADDRESS))
    directory = None if cluster_named else _directory(given, environ)
    if address is None and directory is None:
        # Imported here: the HTTP backend does not need the Kubernetes client.
        from job_supervisor.cli.cluster_backend import ClusterBackend  # noqa: PLC0415

        async with ClusterBackend.open(
            given.kubeconfig or environ.get("KUBECONFIG"), given.context, given.namespace
        ) as cluster:
            yield cluster
        return
    file = given.token_file or _path(environ, _TOKEN_FILE)
    if file is not None:
        token = standalone.token_file(file)
    elif directory is not None:
        token = standalone.token_maker(directory)
    else:
        raise UsageError("--address needs --token-file: a file with a token of `elastic-job-supervisor token viewer`.")
    url = address or standalone.endpoints(directory or DATA_DIR).http
    with _blamed(_ADDRESS if address and not given.address else None):
        connection = Address(url, given.ca_file or _path(environ, _CA_FILE))
    with _blamed(_CA_FILE if not given.ca_file else None):
        trusted = connection.ssl_context()
    async with HttpBackend.open(connection, trusted, token) as supervisor:
        yield supervisor


@contextmanager
def _blamed(variable: str | None) -> Iterator[None]:
    """Blames a variable for what is wrong with its value; None if the value is an option's."""
    try:
        yield
    except UsageError as error:
        if variable is None:
            raise
        raise SettingError(f"{variable}: {error}") from error


def _directory(given: argparse.Namespace, environ: Mapping[str, str]) -> Path | None:
    """The supervisor's data directory; None if the command should use a cluster, as in the pod of a supervisor."""
    if given.data_dir is not None:
        return Path(given.data_dir)
    named = _path(environ, "JOB_SUPERVISOR_DATA_DIR")
    if environ.get("JOB_SUPERVISOR_STORE") == "kubernetes":
        return None
    if named is not None:
        return named
    if standalone.serves(DATA_DIR):
        return DATA_DIR
    return _dev_directory(given, environ)


def _dev_directory(given: argparse.Namespace, environ: Mapping[str, str]) -> Path | None:
    """The data directory of a running `dev`; None if none runs, or something else is meant."""
    dev = default_directory(environ)
    if given.address or environ.get("SUPERVISOR_CLI_ADDRESS") or not is_running(dev):
        return None
    if given.namespace:
        sys.stderr.write("-n names a namespace: asking the cluster, not the running `elastic-job-supervisor dev`.\n")
        return None
    if _has_cluster(environ):  # It may be what was meant.
        sys.stderr.write(f"Asking the supervisor of `elastic-job-supervisor dev` in {dev}, not the cluster.\n")
    return dev


def _has_cluster(environ: Mapping[str, str]) -> bool:
    """Whether a cluster would be asked if no supervisor were found."""
    home = Path(environ.get("HOME") or "~").expanduser()
    return bool(environ.get("KUBECONFIG") or environ.get("KUBERNETES_SERVICE_HOST")) or (home / ".kube/config").exists()


def _path(environ: Mapping[str, str], name: str) -> Path | None:
    return Path(environ[name]) if environ.get(name) else None
