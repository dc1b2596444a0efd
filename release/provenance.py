"""States from what a release was built, as an in-toto statement with SLSA's predicate for provenance."""

import hashlib
import json
import platform
from collections.abc import Sequence
from pathlib import Path

from release.checkout import Checkout

NAME = "provenance.intoto.json"
_OURS = "https://job-supervisor.kube-ai.io/release"


def write(checkout: Checkout, version: str, paths: Sequence[Path], directory: Path) -> Path:
    """Writes the statement about these files, and returns its path.

    Its form is https://slsa.dev/spec/v1.0/provenance. It has no time, so that two builds make the same bytes, and no
    signature of its own: the checksums, which are signed, contain its checksum.
    """
    locks = [path for path in checkout.files("requirements") if path.suffix == ".txt"]
    statement = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [_described(path.name, path) for path in sorted(paths)],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": f"{_OURS}/v1",
                "externalParameters": {"version": version},
                "internalParameters": {"python": platform.python_version()},
                "resolvedDependencies": [
                    {"name": "checkout", "digest": {"gitCommit": checkout.commit}},
                    *(_described(str(path.relative_to(checkout.root)), path) for path in locks),
                ],
            },
            "runDetails": {"builder": {"id": f"{_OURS}/make"}},
        },
    }
    written = directory / NAME
    written.write_text(json.dumps(statement, indent=1) + "\n", encoding="utf-8")
    return written


def _described(name: str, path: Path) -> dict[str, object]:
    return {"name": name, "digest": {"sha256": hashlib.sha256(path.read_bytes()).hexdigest()}}
