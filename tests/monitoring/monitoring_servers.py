"""A real Prometheus and a real Alertmanager on loopback, and queries to them."""

import json
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock, Thread
from typing import Any

from tests.testkit.waiting import wait_until

SCRAPE_SECONDS = 0.5
_ASK_SECONDS = 10.0
_STOP_SECONDS = 10.0

Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Series:
    """A query's result: the labels, and each value at its Unix second."""

    labels: Labels
    points: Sequence[tuple[float, float]]


class Prometheus:
    """A running Prometheus; it scrapes `targets`."""

    def __init__(self, url: str, targets: Path) -> None:
        self._url = url
        self._targets = targets
        self._known: Mapping[str, str] = {}

    def scrape(self, targets: Mapping[str, str]) -> None:
        """Scrape these addresses from now on, each under the name of its job."""
        if targets == self._known:
            return
        self._known = dict(targets)
        named = [{"targets": [address], "labels": {"job": job}} for address, job in targets.items()]
        written = self._targets.with_suffix(".new")
        written.write_text(json.dumps(named), encoding="utf-8")
        written.rename(self._targets)

    def at(self, query: str, when: float) -> list[Series]:
        found = self._asked("query", {"query": query, "time": repr(when)})
        return [Series(each["metric"], [_point(each["value"])]) for each in found]

    def over(self, query: str, begin: float, end: float, step: float) -> list[Series]:
        span = {"start": repr(begin), "end": repr(end), "step": repr(step)}
        found = self._asked("query_range", {"query": query, **span})
        return [Series(each["metric"], [_point(point) for point in each["values"]]) for each in found]

    def exemplars(self, query: str, begin: float, end: float) -> list[Any]:
        data = _answer(f"{self._url}/api/v1/query_exemplars", {"query": query, "start": repr(begin), "end": repr(end)})
        found: list[Any] = data["data"]
        return found

    def _asked(self, path: str, arguments: Mapping[str, str]) -> list[Any]:
        found: list[Any] = _answer(f"{self._url}/api/v1/{path}", arguments)["data"]["result"]
        return found


@contextmanager
def prometheus(program: Path, root: Path, rules: Sequence[Path], alertmanager: str) -> Iterator[Prometheus]:
    """Runs as long as the context lasts.

    Args:
        program: Where it is.
        root: An empty directory for all it writes.
        rules: Evaluated as often as targets are scraped.
        alertmanager: `host:port` that hears of alerts.
    """
    targets = root / "targets.json"
    targets.write_text("[]", encoding="utf-8")
    every = f"{SCRAPE_SECONDS * 1000:.0f}ms"
    config = {
        "global": {"scrape_interval": every, "scrape_timeout": every, "evaluation_interval": every},
        "rule_files": [str(path) for path in rules],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [alertmanager]}]}]},
        "scrape_configs": [{"job_name": "all", "file_sd_configs": [{"files": [str(targets)]}]}],
    }
    (root / "prometheus.yml").write_text(json.dumps(config), encoding="utf-8")
    address = _free_address()
    command = [str(program), f"--config.file={root / 'prometheus.yml'}", f"--storage.tsdb.path={root / 'data'}"]
    command += [f"--web.listen-address={address}", "--enable-feature=exemplar-storage", "--log.level=warn"]
    with _running(command, root / "prometheus.log", f"http://{address}/-/ready"):
        yield Prometheus(f"http://{address}", targets)


@contextmanager
def alertmanager(program: Path, root: Path, receiver: str) -> Iterator[str]:
    """Runs as long as the context lasts; its `host:port`. Tells the receiver, a URL, of every alert at once."""
    config = {
        "route": {"receiver": "ours", "group_by": ["alertname"], "group_wait": "0s", "group_interval": "1s"},
        "receivers": [{"name": "ours", "webhook_configs": [{"url": receiver}]}],
    }
    (root / "alertmanager.yml").write_text(json.dumps(config), encoding="utf-8")
    address = _free_address()
    command = [str(program), f"--config.file={root / 'alertmanager.yml'}", f"--storage.path={root / 'alerts'}"]
    # Empty: it looks for no others of its kind.
    command += [f"--web.listen-address={address}", "--cluster.listen-address=", "--log.level=warn"]
    with _running(command, root / "alertmanager.log", f"http://{address}/-/ready"):
        yield address


class AlertReceiver:
    def __init__(self) -> None:
        self._lock = Lock()
        self._firing: dict[str, Any] = {}

    def told(self, message: Any) -> None:
        with self._lock:
            for alert in message["alerts"]:
                if alert["status"] == "firing":
                    self._firing[alert["labels"]["alertname"]] = alert

    def firing(self) -> Mapping[str, Any]:
        with self._lock:
            return dict(self._firing)


@contextmanager
def receiver() -> Iterator[tuple[str, AlertReceiver]]:
    heard = AlertReceiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:  # The name is the library's.
            heard.told(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/", heard
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def _running(command: Sequence[str], log: Path, ready: str) -> Iterator[None]:
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT) as process:
        try:
            wait_until(lambda: _is_ready(process, ready, log), f"{command[0]} is ready")
            yield
        finally:
            process.terminate()
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()


def _is_ready(process: subprocess.Popen[bytes], url: str, log: Path) -> bool:
    assert process.poll() is None, f"it ended with {process.returncode} before it was ready:\n{log.read_text('utf-8')}"
    try:
        with urllib.request.urlopen(url, timeout=_ASK_SECONDS):  # noqa: S310  # Its own address on loopback.
            return True
    except OSError:
        return False


def _answer(url: str, arguments: Mapping[str, str]) -> Any:
    asked = urllib.request.Request(url, urllib.parse.urlencode(arguments).encode())  # noqa: S310  # As above.
    try:
        with urllib.request.urlopen(asked, timeout=_ASK_SECONDS) as answer:  # noqa: S310  # As above.
            return json.load(answer)
    except urllib.error.HTTPError as error:
        raise AssertionError(f"{arguments}: {error.read().decode()}") from error


def _point(pair: Sequence[Any]) -> tuple[float, float]:
    return float(pair[0]), float(pair[1])


def _free_address() -> str:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{one.getsockname()[1]}"
