"""Sample jobs whose framework lies on the node instead of in their image."""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.chart import chart_page as page
from tests.testkit.yaml_text import document

_EXAMPLES = "examples"


@contextmanager
def changed(desk: Path, change: Callable[[Any], Any], *examples: str) -> Iterator[None]:
    """Whoever follows a page at the desk finds these examples there, with their manifests changed."""
    folder = desk / _EXAMPLES
    folder.unlink()
    for example in examples:
        (folder / example).mkdir(parents=True)
        for manifest in (page.CHECKOUT / _EXAMPLES / example).glob("*.yaml"):
            job = change(document(manifest.read_text("utf-8")))
            (folder / example / manifest.name).write_text(json.dumps(job), "utf-8")
    try:
        yield
    finally:
        shutil.rmtree(folder)
        folder.symlink_to(page.CHECKOUT / _EXAMPLES)
