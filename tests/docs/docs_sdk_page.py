"""The page of the SDK's public names, made of their docstrings. Run as a module: writes docs/reference/sdk.md.

Sources are read and not imported, because most of them need a framework.
"""

import ast
import inspect
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import kubeai.elastic

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "sdk.md"
_SDK = ROOT / "sdk"
_INTEGRATIONS = _SDK / "kubeai" / "elastic" / "integrations"
_PARTS_OF_INTEGRATIONS = {"__init__", "background", "encoding", "epochs", "random_state", "universal", "zero"}
_TORCH = ("training", "loop", "states", "settings", "sampler", "ranks")
_HEAD = """# The SDK, name by name

<!-- Written by `python -m tests.docs.docs_sdk_page` from the docstrings. -->

How a script uses it is on [the SDK's page](../../sdk/README.md), and [training in process](../guide/in-process.md) and
[integrations](../guide/frameworks.md) have pages of their own. This page lists every public name.
"""
_SECTION = re.compile(r"^(Args|Attributes|Raises|Returns|Yields):\n", re.MULTILINE)
_ITEM = re.compile(r"^ {4}(\w[\w, *]*): ", re.MULTILINE)

_Definition = ast.FunctionDef | ast.ClassDef


def page() -> str:
    """The text of the whole page."""
    return "\n".join([_HEAD, *_parts()])


def _parts() -> Iterator[str]:
    yield "## kubeai.elastic\n"
    for name in kubeai.elastic.__all__:
        thing = getattr(kubeai.elastic, name)
        if callable(thing):
            source = Path(str(inspect.getsourcefile(thing)))
            yield from (_entry(each) for each in _public(source) if each.name == name)
    modules = {f"kubeai.torch.{name}": _SDK / "kubeai" / "torch" / f"{name}.py" for name in _TORCH}
    for source in sorted(_INTEGRATIONS.glob("*.py")):
        if source.stem not in _PARTS_OF_INTEGRATIONS:
            modules[f"kubeai.elastic.integrations.{source.stem}"] = source
    for module, source in modules.items():
        yield f"## {module}\n"
        yield f"{_prose(ast.get_docstring(_tree(source)) or '')}\n"
        yield from map(_entry, _public(source))


def _tree(source: Path) -> ast.Module:
    return ast.parse(source.read_text(encoding="utf-8"))


def _public(source: Path) -> list[_Definition]:
    found = [each for each in _tree(source).body if isinstance(each, _Definition)]
    return [each for each in found if not each.name.startswith("_")]


def _entry(definition: _Definition) -> str:
    text = [f"### {definition.name}\n", f"```python\n{_signature(definition)}\n```\n", _described(definition)]
    if isinstance(definition, ast.ClassDef) and (fields := list(_fields(definition))):
        text.append("\n".join([*fields, ""]))
    methods = definition.body if isinstance(definition, ast.ClassDef) else []
    for method in methods:
        if isinstance(method, ast.FunctionDef) and not method.name.startswith("_") and ast.get_docstring(method):
            text += [f"```python\n{_signature(method)}\n```\n", _described(method)]
    return "\n".join(text)


def _fields(definition: ast.ClassDef) -> Iterator[str]:
    """The fields of a class whose docstring does not describe them, and the members of an enumeration."""
    if "Attributes:" in (ast.get_docstring(definition) or ""):
        return
    for each, after in pairwise([*definition.body, ast.Pass()]):
        if isinstance(each, ast.AnnAssign) and not ast.unparse(each.target).startswith("_"):
            yield f"- `{ast.unparse(each.target)}: {ast.unparse(each.annotation)}`"
        elif isinstance(each, ast.Assign) and ast.unparse(each.targets[0]).isupper():
            said = ast.literal_eval(after.value) if isinstance(after, ast.Expr) else ""
            yield f"- `{ast.unparse(each.targets[0])}`: {_joined(said)}"


def _signature(definition: _Definition) -> str:
    if isinstance(definition, ast.ClassDef):
        made = [each for each in definition.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"]
        return f"class {definition.name}{_arguments(made[0], skipped=1) if made else ''}"
    decorators = {ast.unparse(each) for each in definition.decorator_list}
    returned = f" -> {ast.unparse(definition.returns)}" if definition.returns else ""
    if "property" in decorators:
        return f"{definition.name}{returned.replace(' ->', ':')}"
    is_method = bool(definition.args.args) and definition.args.args[0].arg in {"self", "cls"}
    return f"def {definition.name}{_arguments(definition, skipped=int(is_method))}{returned}"


def _arguments(function: ast.FunctionDef, *, skipped: int) -> str:
    """Returns the arguments in brackets; of a method, `skipped` leaves the first one out."""
    given = function.args
    kept = ast.arguments(
        posonlyargs=given.posonlyargs,
        args=given.args[skipped:],
        vararg=given.vararg,
        kwonlyargs=given.kwonlyargs,
        kw_defaults=given.kw_defaults,
        kwarg=given.kwarg,
        defaults=given.defaults,
    )
    one_line = ast.unparse(kept)
    if len(one_line) + len(function.name) <= 90:
        return f"({one_line})"
    return "(\n" + "".join(f"    {each},\n" for each in _split(one_line)) + ")"


def _split(arguments: str) -> Iterator[str]:
    """The arguments, which are separated by commas outside brackets."""
    depth, begin = 0, 0
    for at, letter in enumerate(arguments):
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            yield arguments[begin:at].strip()
            begin = at + 1
    yield arguments[begin:].strip()


def _described(definition: _Definition) -> str:
    """The docstring, in which a section with items becomes a list."""
    beginning, *sections = _SECTION.split(ast.get_docstring(definition) or "")
    text = [f"{_prose(beginning)}\n"]
    for name, content in zip(sections[::2], sections[1::2], strict=True):
        _, *items = _ITEM.split(content)
        listed = [f"- `{item}`: {_joined(said)}" for item, said in zip(items[::2], items[1::2], strict=True)]
        text += [f"{name}:\n", *(listed or [_joined(content)]), ""]
    return "\n".join(text)


def _joined(text: str) -> str:
    return " ".join(text.split())


def _prose(text: str) -> str:
    """Paragraphs on one line each; what is indented is code."""
    paragraphs = []
    for paragraph in re.split(r"\n\s*\n", text.strip("\n")):
        if paragraph.startswith("    "):
            code = "\n".join(line[4:] for line in paragraph.splitlines())
            paragraphs.append(f"```python\n{code}\n```")
        else:
            paragraphs.append(_joined(paragraph))
    return "\n\n".join(paragraphs).replace("\n```\n\n```python\n", "\n\n")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
