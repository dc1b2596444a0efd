"""Makes the template of workers that are still to come, so that their first start on this host is warm, too."""

from __future__ import annotations

import os
import select
import sys
import time
from pathlib import Path
from typing import Mapping, Sequence

from kubeai.warm import imports, place
from kubeai.warm.command_line import parse
from kubeai.warm.plan import TemplatePlan, began, start

PROGRAM = "kubeai-python"


def prepare(program: Sequence[str], environment: Mapping[str, str], seconds: float, *, keep: float = 60.0) -> bool:
    """Import what a program's source imports, and wait until a template has done it.

    Args:
        program: The command line of workers.
        environment: That of workers, apart from the variables of a single worker. This process owns the template.
        seconds: How long to wait at most. The template is then still being made.
        keep: Seconds that it stays without a worker after the end of this process.

    Returns:
        Whether the template serves. It does not if the program is not run by kubeai-python.
    """
    command = parse(program[1:]) if program and Path(program[0]).name == PROGRAM else None
    where = place.directory(environment)
    if command is None or where is None or not sys.platform.startswith("linux"):
        return False
    names = imports.of_command(command.target, is_module=command.is_module)
    waits, ready = os.pipe()
    pid = os.getpid()
    plan = TemplatePlan(sys.executable, command, str(where), pid, began(pid), tuple(names), ready=ready, keep=keep)
    try:
        made = start(plan, environment)
    except OSError:
        return False
    finally:
        os.close(ready)
    try:
        end = time.monotonic() + seconds
        made.wait()
        return bool(select.select([waits], [], [], max(0.0, end - time.monotonic()))[0]) and plan.path.exists()
    finally:
        os.close(waits)
