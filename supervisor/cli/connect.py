"""Chooses and opens the backend, from the arguments and the environment."""

import argparse
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from supervisor.cli import data_dir as standalone
from supervisor.cli.arguments import DATA_DIR
from supervisor.cli.backend import Backend
from supervisor.cli.errors import UsageError
from supervisor.cli.http_backend import Address, HttpBackend


@asynccontextmanager
async def connect(given: argparse.Namespace, environ: Mapping[str, str]) -> AsyncIterator[Backend]:
    """Opens the first backend that applies, in the order that `--help` lists.

    Raises:
        UsageError: The arguments are wrong or incomplete.
        UnreachableError: No supervisor has served from the data directory.
        DeniedError: The supervisor's secret may not be read.
    """
    address = given.address or (None if given.kubeconfig or given.data_dir else environ.get("SUPERVISOR_CLI_ADDRESS"))
    directory = None if given.kubeconfig else _directory(given, environ)
    if address is None and directory is None:
        # Imported here: the HTTP backend does not need the Kubernetes client.
        from supervisor.cli.cluster_backend import ClusterBackend  # noqa: PLC0415

        async with ClusterBackend.open(given.kubeconfig or environ.get("KUBECONFIG"), given.namespace) as cluster:
            yield cluster
        return
    file = given.token_file or _path(environ, "SUPERVISOR_CLI_TOKEN_FILE")
    if file is not None:
        token = standalone.token_file(file)
    elif directory is not None:
        token = standalone.token_maker(directory)
    else:
        raise UsageError("--address needs --token-file: a file with a token of `elastic-job-supervisor token viewer`.")
    url = address or standalone.address(directory or DATA_DIR)
    ca_file = given.ca_file or _path(environ, "SUPERVISOR_CLI_CA_FILE")
    async with HttpBackend.open(Address(url, ca_file), token) as supervisor:
        yield supervisor


def _directory(given: argparse.Namespace, environ: Mapping[str, str]) -> Path | None:
    """The supervisor's data directory; None if the command should use a cluster, as in the pod of a supervisor."""
    if given.data_dir is not None:
        return Path(given.data_dir)
    named = _path(environ, "JOB_SUPERVISOR_DATA_DIR")
    if environ.get("JOB_SUPERVISOR_STORE") == "kubernetes":
        return None
    if named is not None:
        return named
    return DATA_DIR if standalone.serves(DATA_DIR) else None


def _path(environ: Mapping[str, str], name: str) -> Path | None:
    return Path(environ[name]) if environ.get(name) else None
