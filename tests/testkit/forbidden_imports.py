"""Forbids packages that a process under test must not import. A process that imports one ends with a traceback."""

import os
from pathlib import Path


def forbidding(directory: Path, package: str) -> dict[str, str]:
    """Returns the variable with which a process finds, in the package's place, a module that cannot be imported."""
    directory.mkdir()
    (directory / f"{package}.py").write_text(f'raise AssertionError("{package} is imported")\n')
    return {"PYTHONPATH": os.pathsep.join([str(directory), *filter(None, [os.environ.get("PYTHONPATH")])])}
