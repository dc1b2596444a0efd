"""The CRDs of prometheus-operator, from its Go module, as schemas that allow no other fields."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.chart.chart_rendering import Manifest
from tests.testkit.yaml_text import document

_PINS = Path(__file__).parent / "pins"
_MODULE = "github.com/prometheus-operator/prometheus-operator"
_FOLDER = "example/prometheus-operator-crd"
_KINDS = ("podmonitors", "prometheusrules", "servicemonitors")
_SECONDS = 120.0


class DefinitionsUnavailable(Exception):  # noqa: N818  # It names what is so.
    """There is no Go, or the module cannot be downloaded."""


def definitions() -> Mapping[str, Any]:
    """The schema of each kind.

    Raises:
        DefinitionsUnavailable: The message says why.
    """
    return {each["spec"]["names"]["kind"]: _schema(each) for each in files()}


def files() -> Sequence[Manifest]:
    """The files of the CRDs.

    Raises:
        DefinitionsUnavailable: As above.
    """
    folder = _module() / _FOLDER
    return [document((folder / f"monitoring.coreos.com_{kind}.yaml").read_bytes()) for kind in _KINDS]


def _schema(definition: Manifest) -> Any:
    [version] = [each for each in definition["spec"]["versions"] if each["name"] == "v1"]
    schema = _closed(version["schema"]["openAPIV3Schema"])
    # The API server knows what metadata are.
    schema["properties"]["metadata"] = {"type": "object"}
    return schema


def _closed(schema: Any) -> Any:
    """As the API server takes it where it is told to be strict: a field that is not named is no field."""
    if isinstance(schema, list):
        return [_closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {name: _closed(value) for name, value in schema.items()}
    if "properties" in schema and schema.get("type") == "object":
        closed.setdefault("additionalProperties", False)
    return closed


def _module() -> Path:
    if not shutil.which("go"):
        raise DefinitionsUnavailable("there is no Go to download the operator's module with")
    [version] = re.findall(rf"^require {_MODULE} (\S+)$", (_PINS / "go.mod").read_text("utf-8"), re.MULTILINE)
    environment = {**os.environ, "GOFLAGS": "-mod=readonly", "GOWORK": "off", "GOTOOLCHAIN": "local"}
    command = ["go", "mod", "download", "-json", f"{_MODULE}@{version}"]
    done = subprocess.run(
        command, cwd=_PINS, env=environment, check=False, capture_output=True, text=True, timeout=_SECONDS
    )
    if done.returncode:
        raise DefinitionsUnavailable(f"{_MODULE} cannot be downloaded: {' '.join(done.stdout.split())[-300:]}")
    return Path(json.loads(done.stdout)["Dir"])
