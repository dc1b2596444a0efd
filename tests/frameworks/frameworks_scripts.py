"""Scripts of the frameworks that need more than torchrun and an example's path: stand-ins, or fewer processes."""

from pathlib import Path

from tests.frameworks.frameworks_world import FrameworksScript, example


def megatron_gpt(home: Path, root: Path, steps: int) -> FrameworksScript:
    """The example of Megatron-core, with stand-ins for what needs a GPU."""
    return _with_stand_ins("megatron_on_cpu.py", home, example("megatron_gpt.py"), root / "checkpoints", steps)


def torchtitan_llama(home: Path, root: Path, steps: int, *more: str) -> FrameworksScript:
    """The example of TorchTitan, with stand-ins for what needs a GPU."""
    return _with_stand_ins("torchtitan_on_cpu.py", home, example("torchtitan_llama.py"), root / "outputs", steps, *more)


def torchtitan_validating(home: Path, root: Path, steps: int, *more: str) -> FrameworksScript:
    """The same with validations."""
    return _with_stand_ins(
        "torchtitan_on_cpu.py", home, _here("torchtitan_validating.py"), root / "outputs", steps, *more
    )


def trl_sft(home: Path, root: Path, steps: int, *more: str) -> FrameworksScript:
    """A script of TRL with two processes, which writes nothing outside `root`."""
    arguments = (str(root / "checkpoints"), str(steps), *more)
    variables = {"HF_HOME": str(root / "huggingface")}
    return FrameworksScript(home, _here("trl_sft.py"), arguments, 2, variables=variables)


def _with_stand_ins(
    stand_ins: str, home: Path, script: Path, directory: Path, steps: int, *more: str
) -> FrameworksScript:
    return FrameworksScript(home, _here(stand_ins), (str(script), str(directory), str(steps), *more))


def _here(name: str) -> Path:
    return Path(__file__).with_name(name)
