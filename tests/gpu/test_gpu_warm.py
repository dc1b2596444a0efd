"""kubeai-python with a torch that has a GPU: the template has none open, and its forks train on it."""

import subprocess
import time
from collections.abc import Callable

import pytest

from tests.gpu.gpu_programs import (
    DEVICE,
    devices_of,
    memory_used,
    plan_of,
    processes_on_gpu,
    threads_of,
    trained,
)
from tests.sdk.warm.warm_programs import WarmPrograms
from tests.testkit.waiting import wait_until

pytestmark = pytest.mark.timeout(600)

# The imports are the test's. Dropout draws from the generator of the device.
TRAIN = """
    import json, os, sys, time
    had = "torch" in sys.modules
    {imports}
    import torch

    device = os.environ["TRAIN_DEVICE"]
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Dropout(0.2), torch.nn.Linear(256, 8)
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    losses, first = [], None
    for step in range(20):
        loss = model(torch.randn(32, 64, device=device)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item().hex())
        first = first or time.time()
    print(json.dumps(dict(parent=os.getppid(), had=had, losses=losses, first=first)))
    """

# It takes a quarter of the memory that is free.
HOLDS = """
    import os, sys, time
    import torch

    device = os.environ["TRAIN_DEVICE"]
    free = torch.cuda.mem_get_info()[0] if device == "cuda" else 1 << 20
    kept = torch.zeros(free // 4, dtype=torch.uint8, device=device)
    print(os.getpid(), os.getppid(), kept.numel(), flush=True)
    time.sleep(600)
    """

OPENS = {
    "cuda": {
        "init": "import torch\ntorch.cuda.init()",
        "is_available": "import torch\nFOUND = torch.cuda.is_available()",
        "device_count": "import torch\nFOUND = torch.cuda.device_count()",
    },
    "cpu": {"init": "import socket\nkept = socket.socket()"},
}[DEVICE]


def test_forks_train_as_started_processes(
    programs: WarmPrograms, record_property: Callable[[str, object], None]
) -> None:
    """Every loss is equal in every bit, and the template opens no device although its workers do."""
    programs.write("train.py", TRAIN.format(imports=""))
    trained(programs, "python")  # files are read for the first time
    cold = [trained(programs, "python") for _ in range(3)]
    programs.prepared("train.py")
    (template,) = programs.until_prepared()
    warm = [trained(programs, "warm") for _ in range(5)]
    record_property("seconds to the first step, cold", [round(each.seconds, 2) for each in cold])
    record_property("seconds to the first step, warm", [round(each.seconds, 2) for each in warm])
    record_property("left out of the template", plan_of(template)["without"])
    assert {each.parent for each in warm} == {template}
    assert all(each.had for each in warm)
    assert {each.losses for each in (*cold, *warm)} == {cold[0].losses}
    assert len(set(cold[0].losses)) > 1
    assert devices_of(template) == set()
    assert threads_of(template) == 1
    assert max(each.seconds for each in warm) < min(each.seconds for each in cold)


def test_a_killed_worker_gives_its_memory_back(
    programs: WarmPrograms, record_property: Callable[[str, object], None]
) -> None:
    """Two forks hold memory of the GPU, and the template does not. Then their commands are killed."""
    programs.write("holds.py", HOLDS)
    first = programs.start("holds.py")
    _said(first)
    (template,) = (pid for pid in programs.until_prepared() if pid != first.pid)
    first.kill()
    first.wait()
    before = memory_used() if DEVICE == "cuda" else 0
    started = [programs.start("holds.py") for _ in range(2)]
    said = [_said(process) for process in started]
    workers = {worker for worker, _, _ in said}
    assert {parent for _, parent, _ in said} == {template}
    if DEVICE == "cuda":
        held = sum(size for _, _, size in said) >> 20
        assert memory_used() - before > held / 2
        listed = processes_on_gpu()
        record_property("nvidia-smi lists", "the workers" if workers <= listed else listed)
        assert template not in listed
        assert all(devices_of(worker) for worker in workers)
    assert devices_of(template) == set()
    killed = time.monotonic()
    for process in started:
        process.kill()
    if DEVICE == "cuda":
        wait_until(lambda: memory_used() - before < held / 4, "that their memory is free")
        record_property("seconds until the memory is free", round(time.monotonic() - killed, 2))
        assert not workers & processes_on_gpu()
    assert threads_of(template) == 1


def _said(process: subprocess.Popen[str]) -> tuple[int, int, int]:
    assert process.stdout is not None
    line = process.stdout.readline().split()
    assert line, process.communicate()[1]
    return int(line[0]), int(line[1]), int(line[2])


@pytest.mark.parametrize("opens", OPENS)
def test_a_module_that_opens_the_device_is_left_out(
    programs: WarmPrograms, record_property: Callable[[str, object], None], opens: str
) -> None:
    """Torch is not, and the workers train."""
    programs.install("opens", OPENS[opens])
    programs.write("train.py", TRAIN.format(imports="import opens"))
    cold = trained(programs, "python")
    programs.prepared("train.py")
    (template,) = programs.until_prepared()
    warm = [trained(programs, "warm") for _ in range(2)]
    without = plan_of(template)["without"]
    record_property("left out of the template", without)
    assert {each.losses for each in warm} == {cold.losses}
    assert all(each.had for each in warm)
    assert {each.parent for each in warm} == {template}
    assert devices_of(template) == set()
    assert threads_of(template) == 1
    if opens == "init":
        assert "opens" in without
        assert "torch" not in without


def test_the_template_of_a_model_of_transformers(
    programs: WarmPrograms, record_property: Callable[[str, object], None]
) -> None:
    """What the library imports beside torch, it may leave out; torch it may not."""
    if programs.python("-c", "import transformers").returncode:
        pytest.skip("there is no transformers")
    programs.write("train.py", TRANSFORMERS)
    cold = [trained(programs, "python") for _ in range(2)]
    programs.prepared("train.py")
    (template,) = programs.until_prepared()
    warm = [trained(programs, "warm") for _ in range(2)]
    without = plan_of(template)["without"]
    record_property("seconds to the first step, cold", [round(each.seconds, 2) for each in cold])
    record_property("seconds to the first step, warm", [round(each.seconds, 2) for each in warm])
    record_property("left out of the template", without)
    assert {each.losses for each in (*cold, *warm)} == {cold[0].losses}
    assert all(each.had for each in warm)
    assert devices_of(template) == set()
    assert threads_of(template) == 1


TRANSFORMERS = """
    import json, os, sys, time
    had = "torch" in sys.modules
    import torch
    from transformers import BertConfig, BertForMaskedLM

    device = os.environ["TRAIN_DEVICE"]
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)
    model = BertForMaskedLM(BertConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128, vocab_size=500,
        attn_implementation="eager",
    )).to(device).train()
    optimizer = torch.optim.AdamW(model.parameters())
    losses, first = [], None
    for step in range(5):
        tokens = torch.randint(500, (8, 32), device=device)
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item().hex())
        first = first or time.time()
    print(json.dumps(dict(parent=os.getppid(), had=had, losses=losses, first=first)))
    """
