"""The forms of output: tables and sentences for people, JSON, YAML, names and JSONPath for programs."""

import argparse
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from job_supervisor.cli.jsonpath import Template, TemplateError
from job_supervisor.cli.table import Block, write
from job_supervisor.cli.text import printable

_JSONPATH = "jsonpath="


class Form(StrEnum):
    """What `--output` may be; `jsonpath=TEMPLATE` too."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    NAME = "name"


@dataclass(frozen=True, slots=True)
class Output:
    """The chosen form; `template` is set for JSONPath alone."""

    form: Form
    template: Template | None = None

    @classmethod
    def parse(cls, text: str) -> "Output":
        """Parses the value of `--output`, for argparse."""
        if text.startswith(_JSONPATH):
            try:
                return cls(Form.JSON, Template(text.removeprefix(_JSONPATH)))
            except TemplateError as error:
                raise argparse.ArgumentTypeError(str(error)) from error
        if text not in set(Form):
            raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(Form)}, {_JSONPATH}TEMPLATE")
        return cls(Form(text))

    @property
    def for_people(self) -> bool:
        return self.form in (Form.TABLE, Form.WIDE)

    @property
    def wide(self) -> bool:
        return self.form is Form.WIDE

    def value(self, value: object, names: Iterable[str]) -> None:
        """Prints a value for programs; `names` are what `-o name` prints, as `job/NAME` or `node/NAME`."""
        if self.template is not None:
            sys.stdout.write(self.template.render(msgspec.to_builtins(value)))
        elif self.form is Form.NAME:
            sys.stdout.write("".join(printable(name) + "\n" for name in names))
        elif self.form is Form.YAML:
            sys.stdout.write(f"---\n{msgspec.yaml.encode(value).decode()}")
        else:
            sys.stdout.write(msgspec.json.encode(value).decode() + "\n")
        sys.stdout.flush()


def show(*blocks: Block) -> None:
    write(sys.stdout, blocks)


def complain(*blocks: Block) -> None:
    write(sys.stderr, blocks)


def job_names(names: Sequence[str]) -> list[str]:
    return [f"job/{name}" for name in names]
