"""The process of the operator, without a cluster."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

_CONFIG = {
    "apiVersion": "v1",
    "kind": "Config",
    "current-context": "here",
    "clusters": [{"name": "here", "cluster": {"server": "http://127.0.0.1:9"}}],
    "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
    "users": [{"name": "me", "user": {}}],
}


async def test_a_signal_ends_it_while_it_waits_for_an_api_server(tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(json.dumps(_CONFIG), encoding="utf-8")
    environment = {**os.environ, "TRAININGJOB_OPERATOR_KUBECONFIG": str(kubeconfig)}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "trainingjob_operator", env=environment, stderr=asyncio.subprocess.PIPE
    )
    assert process.stderr is not None
    try:
        async for line in process.stderr:
            if json.loads(line)["event"] == "dependency.failing":
                process.send_signal(signal.SIGTERM)
                break
        events = [json.loads(line)["event"] async for line in process.stderr]
        assert (await process.wait(), events[-1]) == (0, "operator.stopped")
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
