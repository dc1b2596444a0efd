"""Finds launchers and their options in command lines and shell scripts."""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

HOROVODRUN, MPIRUN, TORCHRUN, KUBEAI_RUN = "horovodrun", "mpirun", "torchrun", "kubeai-run"
LAUNCHERS = frozenset({HOROVODRUN, MPIRUN, TORCHRUN, KUBEAI_RUN})

_ALIASES = {"mpiexec": MPIRUN}
_TORCH_MODULES = frozenset({"torch.distributed.run", "torch.distributed.launch"})
_SHELLS = frozenset({"sh", "bash", "dash", "ash", "zsh"})
_PREFIXES = frozenset({"exec", "env", "nohup", "time", "command"})
_NESTING = frozenset({KUBEAI_RUN, "kubeai-each-host", "tini", "dumb-init"})
"""Programs that run the command after `--`."""

_COMPUTED = re.compile(r"\$\(\([^\n]{0,200}?\)\)|\$\([^()]*\)|`[^`]*`")
"""The bound keeps a script of many `$((` without an end from taking minutes."""
_PLACEHOLDER = "$_"
"""Not longer than what it stands for, so that no script grows."""
_COMMENT = re.compile(r"(?:^|(?<=\s))#[^\n]*")
_CONTINUED = re.compile(r"\\\r?\n")
_SEPARATOR = re.compile(r"[;&|]+")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_PYTHON = re.compile(r"python[\d.]*")
_VARIABLE = re.compile(r"\$\{?(\w+)\}?")
_DEPTH = 5
"""Commands within commands that are followed."""


@dataclass(frozen=True, slots=True)
class Launch:
    """A program and its own options, up to the script that it starts; `environment` is set in front of it."""

    program: str
    words: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)

    def option(self, *names: str) -> str | None:
        """The value of the last of these options, written `--name VALUE` or `--name=VALUE`; None if there is none."""
        wanted, found = {_spelt(name) for name in names}, None
        for at, word in enumerate(self.words):
            name, equals, value = word.partition("=")
            if name.startswith("-") and _spelt(name) in wanted:
                found = value if equals else next(iter(self.words[at + 1 : at + 2]), "")
        return found

    def has(self, *names: str) -> bool:
        """Whether one of these options is given, with or without a value."""
        wanted = {_spelt(name) for name in names}
        return any(word.startswith("-") and _spelt(word.partition("=")[0]) in wanted for word in self.words)


def launches_in(words: Sequence[str], depth: int = _DEPTH) -> tuple[Launch, ...]:
    """The programs that a command line starts, also within shells and after `--`."""
    environment, rest = _stripped(words)
    if not rest or depth == 0:
        return ()
    program = PurePosixPath(rest[0]).name
    program = _ALIASES.get(program, program)
    if program in _SHELLS:
        return tuple(each for script in _scripts(rest) for each in launches_in_script(script, depth - 1))
    if _PYTHON.fullmatch(program):
        if len(rest) > 2 and rest[1] == "-m" and rest[2] in _TORCH_MODULES:  # noqa: PLR2004
            return (Launch(TORCHRUN, _own(rest[3:]), environment),)
        return (Launch("python", tuple(rest[1:]), environment),)
    if program in _NESTING and "--" in rest:
        behind = rest.index("--")
        inner = launches_in(rest[behind + 1 :], depth - 1)
        return (Launch(program, tuple(rest[1:behind]), environment), *inner)
    return (Launch(program, _own(rest[1:]), environment),)


def launches_in_script(script: str, depth: int = _DEPTH) -> tuple[Launch, ...]:
    """The programs that a shell script starts."""
    return tuple(launch for command in _commands(script) for launch in launches_in(command, depth))


def resolved(value: str, environment: Mapping[str, str]) -> str:
    """A value in which the variables of the environment are replaced; unknown variables stay as they are."""
    return _VARIABLE.sub(lambda match: environment.get(match[1], match[0]), value)


def _spelt(name: str) -> str:
    """An option without its leading dashes, with `-` for `_`, because torchrun accepts both."""
    return name.lstrip("-").replace("_", "-")


def _stripped(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """The variables that are set in front of a command, and the command."""
    environment: dict[str, str] = {}
    for at, word in enumerate(words):
        assigned = _ASSIGNMENT.fullmatch(word)
        if assigned is not None:
            environment[assigned[1]] = assigned[2]
        elif word not in _PREFIXES:
            return environment, list(words[at:])
    return environment, []


def _scripts(words: Sequence[str]) -> Iterator[str]:
    """The script behind `-c` of a shell, which may be combined, as in `-lc`."""
    for at, word in enumerate(words[1:], 1):
        if word.startswith("-") and not word.startswith("--") and word.endswith("c"):
            yield from words[at + 1 : at + 2]
            return


def _own(words: Sequence[str]) -> tuple[str, ...]:
    """The options of the launcher itself, without those of the script that it starts."""
    for at, word in enumerate(words):
        if word in ("--", "-m", "--module") or word.endswith(".py") or _PYTHON.fullmatch(PurePosixPath(word).name):
            return tuple(words[:at])
    return tuple(words)


def _commands(script: str) -> Iterator[list[str]]:
    """The simple commands of a script. A placeholder stands for each computed value, which nobody can know."""
    plain = _COMMENT.sub("", _CONTINUED.sub(" ", _COMPUTED.sub(_PLACEHOLDER, script)))
    lines = plain.replace("\n", " ; ")
    lexer = shlex.shlex(lines, posix=True, punctuation_chars=";&|")
    lexer.whitespace_split, lexer.commenters = True, ""
    try:
        words = list(lexer)
    except ValueError:  # A quotation that does not end.
        words = lines.split()
    command: list[str] = []
    for word in words:
        if _SEPARATOR.fullmatch(word):
            yield command
            command = []
        else:
            command.append(word)
    yield command
