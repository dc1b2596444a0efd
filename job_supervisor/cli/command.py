"""Runs `job-supervisor VERB`, such as `status` or `suspend`, also as `kubectl job-supervisor VERB`."""

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from job_supervisor.cli import data_dir as standalone
from job_supervisor.cli import planning, reporting, showing, steering
from job_supervisor.cli.arguments import DATA_DIR, command_first, parser
from job_supervisor.cli.backend import Backend, Clusters, OneCluster
from job_supervisor.cli.data_dir import default_directory, is_running
from job_supervisor.cli.errors import CliError, CliExitCode, CliSettingError, CliUsageError
from job_supervisor.cli.http_backend import HttpBackend, SupervisorAddress
from job_supervisor.cli.output import complain
from servicekit.commands import print_completion

_PLUGIN = "kubectl-"
_ADDRESS, _CA_FILE = "SUPERVISOR_CLI_ADDRESS", "SUPERVISOR_CLI_CA_FILE"
_TOKEN_FILE = "SUPERVISOR_CLI_TOKEN_FILE"  # noqa: S105 - the name of a variable

_READING: Mapping[str, Callable[[Clusters, argparse.Namespace], Awaitable[CliExitCode]]] = {
    "status": showing.status,
    "explain": showing.explained,
    "history": showing.history,
    "nodes": showing.nodes,
}
_ONE_BACKEND: Mapping[str, Callable[[Backend, argparse.Namespace], Awaitable[CliExitCode]]] = {
    "suspend": steering.steer,
    "resume": steering.steer,
    "stop": steering.steer,
    "drain": steering.drain,
    "undrain": steering.undrain,
    "simulate": steering.simulate,
    "report": reporting.report,
    "plan": planning.plan,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code, a `CliExitCode`."""
    plugin = Path(sys.argv[0]).name.startswith(_PLUGIN)
    words = command_first(sys.argv[1:] if arguments is None else arguments)
    given = parser("kubectl job-supervisor" if plugin else "job-supervisor").parse_args(words)
    try:
        if print_completion(given):
            return CliExitCode.DONE
        return asyncio.run(_run(given, plugin=plugin))
    except CliError as error:
        complain(str(error))
        return error.code
    except (KeyboardInterrupt, asyncio.CancelledError):
        return CliExitCode.INTERRUPTED
    except BrokenPipeError:  # The reader has closed the pipe, and Python would flush standard output at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return CliExitCode.DONE


async def _run(given: argparse.Namespace, *, plugin: bool) -> CliExitCode:
    task = asyncio.current_task()
    if task is not None:  # SIGTERM acts like Ctrl-C: with --wait, the drill is ended.
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    if given.command == "check":  # A file is checked without any supervisor or cluster.
        # Imported here: no other command needs the rules.
        from job_supervisor.cli import checking  # noqa: PLC0415

        return await checking.check_all(given, lambda: connect(given, os.environ, plugin=plugin))
    if given.command == "history" and given.file is not None:
        return showing.history_of_file(given)
    if given.command in _READING:
        async with _clusters(given, os.environ, plugin=plugin) as clusters:
            return await _READING[given.command](clusters, given)
    async with connect(given, os.environ, plugin=plugin) as backend:
        return await _ONE_BACKEND[given.command](backend, given)


@asynccontextmanager
async def _clusters(given: argparse.Namespace, environ: Mapping[str, str], *, plugin: bool) -> AsyncIterator[Clusters]:
    """Opens the backend that applies, or those of the members of a hub.

    Raises:
        CliError: See `connect`; also if the members are asked for at a supervisor's address.
    """
    if not given.members:
        async with connect(given, environ, plugin=plugin) as backend:
            yield OneCluster(backend)
        return
    if given.address or given.data_dir:
        raise CliUsageError("--members asks a hub, with --kubeconfig or --context; a supervisor knows one cluster.")
    # Imported here: nothing else needs it.
    from job_supervisor.cli.members import HubMembers  # noqa: PLC0415

    kubeconfig = given.kubeconfig or environ.get("KUBECONFIG")
    async with HubMembers.open(kubeconfig, given.context, given.namespace) as members:
        yield members


@asynccontextmanager
async def connect(
    given: argparse.Namespace, environ: Mapping[str, str], *, plugin: bool = False
) -> AsyncIterator[Backend]:
    """Opens the first backend that applies, in the order that `--help` lists.

    A `plugin` of kubectl asks the cluster unless an option names something else.

    Raises:
        CliUsageError: The arguments are wrong or incomplete.
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
        raise CliUsageError(
            "--address needs --token-file: a file with a token of `elastic-job-supervisor token viewer`."
        )
    url = address or standalone.endpoints(directory or DATA_DIR).http
    with _blamed(_ADDRESS if address and not given.address else None):
        connection = SupervisorAddress(url, given.ca_file or _path(environ, _CA_FILE))
    with _blamed(_CA_FILE if not given.ca_file else None):
        trusted = connection.ssl_context()
    async with HttpBackend.open(connection, trusted, token) as supervisor:
        yield supervisor


@contextmanager
def _blamed(variable: str | None) -> Iterator[None]:
    """Names the environment variable in the error of a wrong value. `variable` is None if an option gave the value."""
    try:
        yield
    except CliUsageError as error:
        if variable is None:
            raise
        raise CliSettingError(f"{variable}: {error}") from error


def _directory(given: argparse.Namespace, environ: Mapping[str, str]) -> Path | None:
    """Chooses the data directory of a supervisor; None for a cluster, as in the pod of a supervisor."""
    if given.data_dir is not None:
        return Path(given.data_dir)
    named = _path(environ, "JOB_SUPERVISOR_DATA_DIR")
    if environ.get("JOB_SUPERVISOR_STORE") == "kubernetes":
        return None
    if named is not None:
        return named
    if standalone.serves(DATA_DIR):
        return DATA_DIR
    dev = default_directory(environ)
    if given.address or environ.get(_ADDRESS) or not is_running(dev):
        return None
    if given.namespace:
        sys.stderr.write("-n names a namespace: asking the cluster, not the running `elastic-job-supervisor dev`.\n")
        return None
    kubeconfig = Path(environ.get("HOME") or "~").expanduser() / ".kube/config"
    if environ.get("KUBECONFIG") or environ.get("KUBERNETES_SERVICE_HOST") or kubeconfig.exists():
        # The cluster may be what was meant.
        sys.stderr.write(f"Asking the supervisor of `elastic-job-supervisor dev` in {dev}, not the cluster.\n")
    return dev


def _path(environ: Mapping[str, str], name: str) -> Path | None:
    return Path(environ[name]) if environ.get(name) else None


if __name__ == "__main__":
    sys.exit(main())
