"""The CRDs of cert-manager, from its Go module in Go's module cache."""

import json
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.testkit.yaml_text import document

_MODULE = "github.com/cert-manager/cert-manager@v1.21.2"
_SUM = "h1:UWgoYM+KLNtRlqmoWOKjKBOBUPVHeepQ6/ac3ERJW68="
_KINDS = ("certificates", "issuers", "clusterissuers")
# The archive has two megabytes.
_SECONDS = 120.0


class CertManagerUnavailable(Exception):  # noqa: N818  # It names what is so.
    """Neither kept here nor to be fetched; the message says why."""


def definitions() -> Sequence[dict[str, Any]]:
    """Of the resources that somebody who writes certificates uses.

    Raises:
        CertManagerUnavailable: No module proxy can be reached.
    """
    directory = _fetched() / "deploy" / "crds"
    return [document((directory / f"cert-manager.io_{kind}.yaml").read_text("utf-8")) for kind in _KINDS]


def _fetched() -> Path:
    command = ["go", "mod", "download", "-json", _MODULE]
    try:
        # In no module: what the programs are built from is pinned elsewhere, and not asked.
        with tempfile.TemporaryDirectory() as nowhere:
            done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=nowhere, timeout=_SECONDS)
    except (FileNotFoundError, subprocess.TimeoutExpired) as error:
        raise CertManagerUnavailable(f"{_MODULE} cannot be fetched: {error}") from error
    said = json.loads(done.stdout or "{}")
    if done.returncode or "Dir" not in said:
        raise CertManagerUnavailable(f"{_MODULE} cannot be fetched: {said.get('Error') or done.stderr.strip()}")
    assert said["Sum"] == _SUM, f"{_MODULE} is another one: {said['Sum']}"
    return Path(said["Dir"])
