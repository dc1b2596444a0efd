"""A stand-in for the CUDA libraries that torch links to, so that torch loads on a machine that has none of them.

PyPI's torch is built for CUDA. Its CUDA libraries take more space than everything else together, and a test on CPUs
calls hardly any of their functions. The stand-in has every function that torch names, and each returns an error, which
torch takes to mean that there is no GPU.
"""

import re
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

_NAME = "libcuda_stand_in.so"
_NEEDED = re.compile(r"\(NEEDED\).*\[(lib(?:cu|nccl|nv).+)\]")
# Symbols of these libraries carry the library's name as their version, NVSHMEM's a word, and the others none at all.
_UNDEFINED = re.compile(r" U (?:(\w+)@(lib(?:cu|nv).+|NVSHMEM)|((?:cu|nccl)\w+))$", re.MULTILINE)
# cudaErrorNoDevice. It is an error in the other libraries, too.
_ERROR = 100


class CannotMake(Exception):  # noqa: N818  # It names what is so.
    """There is no compiler or no binutils, or they fail; the message says which."""


def make(site_packages: Path) -> None:
    """Make the stand-in beside torch's libraries, with a link for each library that torch needs and lacks.

    Raises:
        CannotMake: The programs that this needs are missing or fail.
    """
    directory = site_packages / "torch" / "lib"
    libraries = [str(library) for library in directory.glob("*.so*")]
    needed = set(_NEEDED.findall(_said("readelf", "--dynamic", *libraries)))
    functions: dict[str, set[str]] = defaultdict(set)
    for versioned, version, plain in _UNDEFINED.findall(_said("nm", "--dynamic", "--undefined-only", *libraries)):
        functions[version].add(versioned or plain)
    _compile(directory / _NAME, functions)
    for name in needed:
        if not (directory / name).exists():
            # The loader knows one file under many names.
            (directory / name).symlink_to(_NAME)


def _compile(library: Path, functions: Mapping[str, Iterable[str]]) -> None:
    with tempfile.TemporaryDirectory() as made:
        source, versions = Path(made, "stand_in.c"), Path(made, "stand_in.map")
        names = sorted(name for group in functions.values() for name in group)
        source.write_text("".join(f"int {name}(void) {{ return {_ERROR}; }}\n" for name in names), encoding="ascii")
        versions.write_text(
            "".join(
                f"{version} {{ {'; '.join(sorted(group))}; }};\n" for version, group in functions.items() if version
            ),
            encoding="ascii",
        )
        script = f"-Wl,--version-script={versions}"
        # Some of the names are builtins of the compiler, with other types.
        _said("cc", "-w", "-fno-builtin", "-shared", "-fPIC", script, "-o", str(library), str(source))


def _said(*command: str) -> str:
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout
    except FileNotFoundError as error:
        raise CannotMake(f"there is no {command[0]}") from error
    except subprocess.CalledProcessError as error:
        raise CannotMake(f"{command[0]}: {' '.join(error.stderr.split())[-300:]}") from error
