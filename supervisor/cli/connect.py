"""Whom to ask: a supervisor or a cluster, by what was typed and what the environment says."""

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
    """The first that applies, as `--help` lists them.

    Raises:
        UsageError: What was said is no good, or not enough.
        UnreachableError: No supervisor has served from there.
        DeniedError: Its secret is not for whoever asks.
    """
    address = given.address or (None if given.kubeconfig or given.data_dir else environ.get("SUPERVISOR_CLI_ADDRESS"))
    directory = None if given.kubeconfig else _directory(given, environ)
    if address is None and directory is None:
        # Imported here: who asks a supervisor needs none of it.
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
    """The data directory that is meant; None where none is, as in the pod of a supervisor on a cluster."""
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
