r"""Templates as `kubectl -o jsonpath=…` takes them, on paths that a library evaluates.

Supported: text, `{.path}`, quoted text with `\n` and `\t`, `{range .path}…{end}`, indexes, slices, `[*]`, `..`,
filters such as `[?(@.phase=="Running")]`, and `\.` in a name. A single path needs no braces.
"""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import jsonpath

_ACTION = re.compile(r"""\{((?:"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|[^{}"'])*)\}""")
_ESCAPED_NAME = re.compile(r"\.((?:[^\s.\[\]()\\]|\\.)*\\\.(?:[^\s.\[\]()\\]|\\.)*)")
_QUOTED = re.compile(r"""(["'])(.*)\1""", re.DOTALL)
_TEXT = {"\\n": "\n", "\\t": "\t", '\\"': '"', "\\'": "'", "\\\\": "\\"}


class TemplateError(ValueError):
    """The template is wrong; the message says where."""


class Template:
    """A template.

    Raises:
        TemplateError: It is wrong.
    """

    def __init__(self, text: str) -> None:
        if "{" not in text:
            text = f"{{{text if text[:1] in ('.', '[', '$') else f'.{text}'}}}"
        self._parts = _parsed(_split(text))

    def render(self, value: Any) -> str:
        """Returns the text for a value of JSON; a path that does not exist gives nothing."""
        return "".join(_rendered(self._parts, value))


class _Path:
    def __init__(self, text: str) -> None:
        path = _ESCAPED_NAME.sub(lambda found: f"[{json.dumps(found[1].replace(chr(92) + '.', '.'))}]", text)
        path = f"${path[1:] if path[:1] in ('$', '@') else path}"
        try:
            self._query = jsonpath.compile("$" if path in ("$", "$.") else path)
        except jsonpath.JSONPathError as error:
            raise TemplateError(f"{text!r} is not a JSONPath: {error.args[0] if error.args else error}") from error

    def find(self, value: Any) -> Sequence[Any]:
        # The library queries objects and arrays only, and `{.}` within a range may stand for a string.
        return self._query.findall(value) if isinstance(value, (dict, list)) else [value]


class _Range:
    def __init__(self, path: _Path, body: "Sequence[_Part]") -> None:
        self.path = path
        self.body = body


_Part = str | _Path | _Range


def _split(text: str) -> Iterator[tuple[bool, str]]:
    """Yields literal text and, marked with True, the insides of braces."""
    at = 0
    for found in _ACTION.finditer(text):
        yield False, text[at : found.start()]
        yield True, found[1].strip()
        at = found.end()
    yield False, text[at:]


def _parsed(pieces: Iterator[tuple[bool, str]], *, inside: bool = False) -> list[_Part]:
    parts: list[_Part] = []
    for is_action, text in pieces:
        if not is_action:
            if set("{}") & set(text):
                raise TemplateError(f"a brace is not closed in {text!r}")
            parts.append(text)
        elif text == "end":
            if not inside:
                raise TemplateError("{end} without {range}")
            return parts
        elif text.split(maxsplit=1)[:1] == ["range"]:
            parts.append(_Range(_Path(text.removeprefix("range").strip()), _parsed(pieces, inside=True)))
        else:
            quoted = _QUOTED.fullmatch(text)
            parts.append(_unescaped(quoted[2]) if quoted else _Path(text))
    if inside:
        raise TemplateError("{range} without {end}")
    return parts


def _unescaped(text: str) -> str:
    return re.sub(r"\\.", lambda found: _TEXT.get(found[0], found[0]), text)


def _rendered(parts: Sequence[_Part], value: Any) -> Iterator[str]:
    for part in parts:
        if isinstance(part, str):
            yield part
        elif isinstance(part, _Path):
            yield " ".join(_text(each) for each in part.find(value))
        else:
            for each in part.path.find(value):
                yield from _rendered(part.body, each)


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
