"""YAML and TOML that people write: a text is a document, or a :class:`ConfigError` that names the place."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import yaml

from bridge.errors import ConfigError


class Loader(yaml.SafeLoader):
    """Names the place of a date or a number that does not exist, for which PyYAML raises errors of Python."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Return the value of a node."""
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError, ArithmeticError) as error:
            problem = f"{str(node.value)[:100]!r} is not allowed: {error}; a text needs quotes"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark) from error


def yaml_document(text: str, source: str, loader: type[Loader] = Loader) -> Any:
    """Return the only document, ``None`` for an empty text; raises :class:`ConfigError`, which names ``source``."""
    with _errors(source):
        return loader(text).get_single_data()


def yaml_documents(text: str | IO[str], source: str) -> list[Any]:
    """Return all documents; raises :class:`ConfigError`, which names ``source``."""
    with _errors(source):
        return list(yaml.load_all(text, Loader))


def toml_document(text: str, source: str) -> dict[str, Any]:
    """Return the document; raises :class:`ConfigError`, which names ``source``."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # a number of 5,000 digits is no TOMLDecodeError
        raise ConfigError(f"{source}: not TOML: {error}") from error


@contextmanager
def _errors(source: str) -> Iterator[None]:
    try:
        yield
    except UnicodeDecodeError as error:
        raise ConfigError(f"{source}: not UTF-8: {error}") from error
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"{source}: not YAML: {error}") from error
    except RecursionError as error:
        raise ConfigError(f"{source}: not YAML: it is nested too deep") from error
