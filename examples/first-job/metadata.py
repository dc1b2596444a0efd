"""A stand-in for the metadata of one ECS spot instance, for a cluster that has none: it answers on its node's loopback.

python metadata.py PORT FILE

While FILE exists, the node is announced to be reclaimed: at the instant that it contains, as in 2026-01-05T18:02:00Z.
"""

import os
import sys
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

_ROOT = "/latest/meta-data"


def items(announcement: Path) -> dict[str, str]:
    """Return what the instance says, by path."""
    said = {f"{_ROOT}/instance-id": f"i-{os.environ['NODE']}", f"{_ROOT}/region-id": "cn-stand-in"}
    if announcement.exists():
        said[f"{_ROOT}/instance/spot/termination-time"] = announcement.read_text().strip()
    return said


class SpotMetadata(BaseHTTPRequestHandler):
    """Answers GET requests without a token, as an instance in normal mode does."""

    def do_GET(self) -> None:
        """Answer with an item, or 404."""
        said = items(Path(sys.argv[2])).get(self.path)
        self.send_response(HTTPStatus.NOT_FOUND if said is None else HTTPStatus.OK)
        self.send_header("Content-Length", str(len(said or "")))
        self.end_headers()
        self.wfile.write((said or "").encode())

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        """The agent asks every second: nothing is logged."""


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), SpotMetadata).serve_forever()
