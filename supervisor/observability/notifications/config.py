"""The file that lists the targets of notifications."""

from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from supervisor.observability.notifications.composing import Choice, Origin, sample
from supervisor.observability.notifications.message import Kind
from supervisor.observability.notifications.templates import BadTemplateError, Format, Renderer

MAX_TARGETS = 20
USUAL = tuple(kind for kind in Kind if kind is not Kind.NOTICE)
"""Without a choice: all but the notices, of which a busy cluster has many."""


class ConfigError(ValueError):
    """The file cannot be read or used; a person has to correct it."""


class Target(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel", kw_only=True):
    """One receiver. `url_file` contains its URL, a secret; a relative path starts at the configuration file."""

    name: Annotated[str, Meta(pattern=r"^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?\Z")]
    url_file: Annotated[str, Meta(min_length=1)]
    format: Format = Format.WEBHOOK
    kinds: Annotated[tuple[Kind, ...], Meta(min_length=1)] = USUAL
    namespaces: tuple[str, ...] = ()
    text: Annotated[str, Meta(max_length=10_000)] = ""
    body: dict[str, Any] | list[Any] | None = None

    @property
    def choice(self) -> Choice:
        """What it wants to hear of."""
        return Choice(frozenset(self.kinds), frozenset(self.namespaces))

    @property
    def renderer(self) -> Renderer:
        """What its messages look like.

        Raises:
            BadTemplateError: A template cannot be compiled.
        """
        return Renderer(self.format, self.text, self.body)


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel", kw_only=True):
    """The content of the file."""

    targets: Annotated[tuple[Target, ...], Meta(max_length=MAX_TARGETS)] = ()
    cluster: Annotated[str, Meta(max_length=100)] = ""
    page_url: Annotated[str, Meta(pattern=r"^(https?://\S+/)?\Z")] = ""

    @property
    def origin(self) -> Origin:
        """Where its messages come from."""
        return Origin(self.cluster, self.page_url)


def load(path: Path) -> Config:
    """Reads and checks the file.

    Raises:
        ConfigError: The file cannot be read, is not of this form, or contains a template that is not valid.
    """
    try:
        config = msgspec.json.decode(path.read_bytes(), type=Config)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{path}: {error}") from error
    names = [target.name for target in config.targets]
    if len(set(names)) < len(names):
        raise ConfigError(f"{path}: two targets have the same name")
    for target in config.targets:
        try:
            target.renderer.body(sample(config.origin))
        except BadTemplateError as error:
            raise ConfigError(f"{path}: target {target.name}: {error}") from error
    targets = tuple(msgspec.structs.replace(each, url_file=str(path.parent / each.url_file)) for each in config.targets)
    return msgspec.structs.replace(config, targets=targets)
