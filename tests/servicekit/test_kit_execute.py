"""Commands in containers, of an API server that answers as real ones do: a scripted one, on loopback."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from servicekit.kubernetes.errors import ApiError, ApiUnavailableError, RefusedError
from servicekit.kubernetes.execute import ExecResult, execute
from servicekit.kubernetes.objects import ObjectKey
from servicekit.kubernetes.server import ApiServer

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]
_FAILED = {"status": "Failure", "message": "exit 3", "details": {"causes": [{"reason": "ExitCode", "message": "3"}]}}


def says(*messages: tuple[int, bytes]) -> Answer:
    async def answer(request: web.Request) -> web.StreamResponse:
        channel = web.WebSocketResponse(protocols=["v4.channel.k8s.io"])
        await channel.prepare(request)
        for number, data in messages:
            await channel.send_bytes(bytes([number]) + data)
        await channel.close()
        return channel

    return answer


def status(content: Any) -> tuple[int, bytes]:
    return 3, json.dumps(content).encode()


async def refuses(_request: web.Request) -> web.StreamResponse:
    return web.json_response({"message": "no"}, status=403)


@asynccontextmanager
async def serving(directory: Path, answer: Answer, seconds: float = 2.0) -> AsyncIterator[ApiServer]:
    application = web.Application()
    application.router.add_get("/api/v1/namespaces/space/pods/pod/exec", answer)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    content = {
        "current-context": "x",
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{runner.addresses[0][1]}"}}],
        "users": [{"name": "u", "user": {"token": "secret"}}],
    }
    (directory / "kubeconfig").write_text(json.dumps(content), encoding="utf-8")
    server = await ApiServer.connect(str(directory / "kubeconfig"), seconds)
    try:
        yield server
    finally:
        await server.close()
        await runner.cleanup()


async def run(directory: Path, answer: Answer, command: Sequence[str] = ("true",)) -> ExecResult:
    async with serving(directory, answer) as server:
        return await execute(server, ObjectKey("space", "pod"), "et", command)


async def test_both_outputs_and_the_code_come_back(tmp_path: Path) -> None:
    ran = await run(tmp_path, says((1, b""), (1, b"out "), (2, b"err"), status(_FAILED)))
    assert ran == ExecResult(3, "out err")


async def test_what_is_asked_for_is_the_container_the_command_and_the_outputs(tmp_path: Path) -> None:
    asked: list[object] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        asked.extend([request.query.getall("command"), request.query["container"], request.headers["Authorization"]])
        return await says(status({"status": "Success"}))(request)

    assert await run(tmp_path, answer, ["sh", "-c", "echo a b"]) == ExecResult(0, "")
    assert asked == [["sh", "-c", "echo a b"], "et", "Bearer secret"]


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (says((1, b"half")), ApiUnavailableError),
        (says((3, b"garbage")), ApiUnavailableError),
        (says(status({"status": "Failure", "message": "no such file"})), ApiUnavailableError),
        (refuses, RefusedError),
    ],
    ids=["cut", "garbage", "not run", "forbidden"],
)
async def test_what_did_not_run_to_its_end_has_no_code(tmp_path: Path, answer: Answer, error: type[ApiError]) -> None:
    with pytest.raises(error):
        await run(tmp_path, answer)


async def test_a_command_that_never_stops_speaking_fills_no_memory(tmp_path: Path) -> None:
    ran = await run(tmp_path, says(*[(1, b"x" * 50_000)] * 20, status({"status": "Success"})))
    assert ran.code == 0
    assert len(ran.output) == 64 * 1024


async def test_a_command_that_may_take_longer_gets_that_time_on_top(tmp_path: Path) -> None:
    async def never(request: web.Request) -> web.StreamResponse:
        channel = web.WebSocketResponse(protocols=["v4.channel.k8s.io"])
        await channel.prepare(request)
        await channel.receive()
        return channel

    async with serving(tmp_path, never, 0.1) as server:
        with pytest.raises(ApiUnavailableError, match=r"within 0\.1 s"):
            await execute(server, ObjectKey("space", "pod"), "et", ["true"])
        with pytest.raises(ApiUnavailableError, match=r"within 0\.3 s"):
            await execute(server, ObjectKey("space", "pod"), "et", ["true"], 0.2)
