"""The entry points of the commands.

In the wheel, our packages lie below this one and not beside it, because supervisord also has a package `supervisor`:
each of the two distributions would overwrite files of the other. The commands put the folder with our packages first on
the path of their own process, so both may be installed in one environment.
"""

import sys
from importlib import import_module
from pathlib import Path

_HERE = Path(__file__).parent
PACKAGES = _HERE / "_packages" if (_HERE / "_packages").is_dir() else _HERE.parent
"""The folder of our packages: in the wheel, or the root of a checkout."""


def supervisor() -> int:
    """Runs `elastic-job-supervisor`: the service with its commands, and `dev`."""
    return _main("supervisor.__main__", "job_supervisor.dev.options")


def job_supervisor() -> int:
    """Runs `job-supervisor`."""
    return _main("job_supervisor.cli.command")


def node_agent() -> int:
    """Runs `elastic-node-agent`."""
    return _main("node_agent.__main__")


def state_keeper() -> int:
    """Runs `elastic-state-keeper`."""
    return _main("node_agent.keeper.__main__")


def trainingjob_operator() -> int:
    """Runs `trainingjob-operator`."""
    return _main("trainingjob_operator.__main__")


def _main(module: str, *additions: str) -> int:
    """Runs the `main` of a module; each addition is a module whose `COMMAND` it runs, too."""
    package = module.partition(".")[0]
    if not (PACKAGES / package).is_dir():
        command = Path(sys.argv[0]).name
        sys.exit(f"{command}: this installation does not contain {package}; the agent's image has the agent only")
    sys.path.insert(0, str(PACKAGES))
    try:
        main = import_module(module).main
        code: int = main(added=[import_module(each).COMMAND for each in additions]) if additions else main()
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if not missing or (PACKAGES / missing).is_dir():
            raise
        sys.exit(
            f"{Path(sys.argv[0]).name}: the package {missing} is not installed here. The extra `cli` has what "
            "job-supervisor needs, `server` what the services need: pip install 'elastic-job-supervisor[server]'."
        )
    return code
