"""The part of CEL that selectors of devices need: a parser to functions of one device. Pure.

A term is a constant, ``device.driver``, ``device.attributes["domain"].name`` or ``device.capacity["domain"].name``.
Terms are compared (``==``, ``!=``, ``<``, ``<=``, ``>``, ``>=``, ``in``) and joined (``&&``, ``||``, ``!``, brackets).
Functions: ``has``, ``quantity``, ``semver``; ``compareTo``, ``isGreaterThan`` and ``isLessThan`` of both;
``startsWith``, ``endsWith``, ``contains``, ``lowerAscii``, ``upperAscii`` and ``matches`` of strings. Everything else
is refused, as is an expression that does not read the device.

The results are those of the API server's CEL: a missing attribute, and an operation on values of the wrong type, is an
error, which ``&&`` and ``||`` ignore if the other side decides; values of different types are unequal. Sources:
the CEL specification and ``k8s.io/dynamic-resource-allocation/cel``, with which ``tests/contract/kube/test_cel.py``
compares it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from bridge.workload import quantity
from bridge.workload.devices.cel_values import (
    METHODS,
    ORDER,
    UNARY,
    AbortedError,
    Described,
    EvaluationError,
    Selector,
    Semver,
    Term,
    Value,
    as_text,
    boolean,
    call,
    equal,
    join,
    member,
    ordered,
    unequal,
)

LONGEST = 10 * 1024
"""Length of an expression that the API server allows."""
DEEPEST = 32
"""Nested brackets and ``!``."""
_TOKEN = re.compile(
    r"\s*(?:(?P<string>\"[^\"\\\n]*\"|'[^'\\\n]*')|(?P<int>[0-9]{1,18})(?![0-9.xXeEuU])|(?P<name>[A-Za-z_][A-Za-z0-9_]*)"
    r"|(?P<sign>&&|\|\||==|!=|<=|>=|[<>!()\[\].,-]))"
)
_PATTERN = re.compile(r"(?!.*\[\[)(?!.*[*+?][*+?])(?!(?:[^*+?]*[*+?]){4})[^(){}\\\n]{0,256}")
"""Regular expressions that take little time in Python, and mean the same in RE2, except for ``$``."""
_END = re.compile(r"\$(?![^\[\]]*\])")
"""``$`` outside of a class: in Python, it also matches before a newline at the end."""


class UnsupportedExpressionError(ValueError):
    """An expression outside the supported part of CEL."""


@lru_cache(maxsize=256)
def parse(text: str) -> Selector:
    """Return the function that decides whether a device matches; an error does not match.

    Raises :class:`UnsupportedExpressionError`.
    """
    if len(text) > LONGEST:
        raise UnsupportedExpressionError(f"CEL expression of more than {LONGEST} characters")
    term = _Parser(text).whole()

    def matches(device: Described) -> bool:
        try:
            return term(device) is True
        except (EvaluationError, AbortedError):
            return False

    return matches


@dataclass(frozen=True, slots=True)
class _Domain:
    """``device.attributes[domain]``, as a term: which of the two maps, and the domain."""

    kind: str
    name: str

    def of(self, device: Described) -> Mapping[str, Any]:
        return device.attributes if self.kind == "attributes" else device.capacity

    def get(self, name: str) -> Term:
        key = f"{self.name}/{name}"

        def value(device: Described) -> Any:
            values = self.of(device)
            if key not in values:
                raise EvaluationError
            return values[key]

        return value

    def contains(self, name: str) -> Term:
        return lambda device: f"{self.name}/{name}" in self.of(device)


class _Parser:
    """Recursive descent. ``_at`` is the position of the next token, ``_kind`` and ``_text`` are the token."""

    def __init__(self, text: str) -> None:
        self._all, self._end, self._depth, self._reads_device = text, 0, 0, False
        self._at, self._kind, self._text = 0, "", ""
        self._next()

    def whole(self) -> Term:
        term = self._or()
        if self._kind != "end" or not self._reads_device:
            raise self._refused()
        return term

    def _or(self) -> Term:
        return self._joined("||", self._and, decides=True)

    def _and(self) -> Term:
        return self._joined("&&", self._relation, decides=False)

    def _joined(self, sign: str, part: Callable[[], Term], *, decides: bool) -> Term:
        terms = [part()]
        while self._take(sign):
            terms.append(part())
        return terms[0] if len(terms) == 1 else lambda device: join(terms, device, decides)

    def _relation(self) -> Term:
        left = self._unary()
        sign = self._text if self._kind in ("sign", "name") else ""
        if sign in ("==", "!="):
            self._next()
            right, same = self._unary(), equal if sign == "==" else unequal
            return lambda device: same(left(device), right(device))
        if sign in ORDER:
            self._next()
            right, compare = self._unary(), ORDER[sign]
            return lambda device: compare(*ordered(left(device), right(device)))
        if sign == "in":
            self._next()
            return self._within(left)
        return left

    def _within(self, left: Term) -> Term:
        if self._take("["):
            listed = [self._constant()]
            while self._take(","):
                listed.append(self._constant())
            self._need("]")
            return lambda device: member(left(device), listed)
        domain = self._domain()

        def within(device: Described) -> bool:
            name = left(device)
            return isinstance(name, str) and domain.contains(name)(device) is True

        return within

    def _unary(self) -> Term:
        self._depth += 1
        if self._depth > DEEPEST:
            raise self._refused()
        if self._take("!"):
            inner = self._unary()
            term: Term = lambda device: not boolean(inner(device))  # noqa: E731
        else:
            term = self._methods(self._primary())
        self._depth -= 1
        return term

    def _primary(self) -> Term:
        if self._take("("):
            inner = self._or()
            self._need(")")
            return inner
        if self._kind != "name" or self._text in ("true", "false"):
            value = self._constant()
            return lambda _: value
        word = self._text
        if word == "device":
            return self._device()
        if word == "has":
            self._next()
            self._need("(")
            domain = self._domain()
            is_contained = domain.contains(self._member())
            self._need(")")
            return is_contained
        if word in ("quantity", "semver"):
            self._next()
            self._need("(")
            text = self._constant()
            self._need(")")
            try:
                made = quantity.parse(as_text(text)) if word == "quantity" else Semver.parse(as_text(text))
            except (ValueError, EvaluationError):
                raise UnsupportedExpressionError(f"CEL expression: {text!r} is not a {word}") from None
            return lambda _: made
        raise self._refused()

    def _device(self) -> Term:
        before = self._at
        self._need("device")
        self._need(".")
        self._reads_device = True
        if self._take("driver"):
            return lambda device: device.driver
        self._end = before
        self._next()
        return self._domain().get(self._member())

    def _domain(self) -> _Domain:
        self._need("device")
        self._need(".")
        self._reads_device = True
        kind = self._text
        if kind not in ("attributes", "capacity"):
            raise self._refused()
        self._next()
        self._need("[")
        name = self._string()
        self._need("]")
        return _Domain(kind, name)

    def _member(self) -> str:
        if self._take("["):
            name = self._string()
            self._need("]")
            return name
        self._need(".")
        if self._kind != "name":
            raise self._refused()
        name = self._text
        self._next()
        return name

    def _methods(self, term: Term) -> Term:
        calls = 0
        while self._take("."):
            name, calls = self._text, calls + 1
            if calls > DEEPEST or self._kind != "name" or name not in METHODS:
                raise self._refused()
            self._next()
            self._need("(")
            if name in UNARY:
                self._need(")")
                term = call(METHODS[name], term, lambda _: "")
                continue
            if name == "matches":
                pattern = self._string()
                if not _PATTERN.fullmatch(pattern):
                    raise UnsupportedExpressionError(
                        f"CEL expression: the regular expression {pattern!r} is not supported; allowed: without "
                        f"brackets, braces and backslashes, with at most three of *, + and ?"
                    )
                try:
                    compiled = re.compile(_END.sub(r"\\Z", pattern), re.ASCII)
                except re.error:
                    raise UnsupportedExpressionError(
                        f"CEL expression: {pattern!r} is not a regular expression"
                    ) from None
                term = call(METHODS[name], term, lambda _, compiled=compiled: compiled)  # type: ignore[misc]
            else:
                term = call(METHODS[name], term, self._or())
            self._need(")")
        return term

    def _constant(self) -> Value:
        negative = self._take("-")
        kind, text = self._kind, self._text
        if kind == "int":
            self._next()
            return -int(text) if negative else int(text)
        if negative or not (kind == "string" or text in ("true", "false")):
            raise self._refused()
        self._next()
        return text[1:-1] if kind == "string" else text == "true"

    def _string(self) -> str:
        if self._kind != "string":
            raise self._refused()
        text = self._text[1:-1]
        self._next()
        return text

    def _take(self, text: str) -> bool:
        if self._text != text or self._kind == "string":
            return False
        self._next()
        return True

    def _need(self, text: str) -> None:
        if not self._take(text):
            raise self._refused()

    def _next(self) -> None:
        match = _TOKEN.match(self._all, self._end)
        if match is not None:
            self._kind, self._end = str(match.lastgroup), match.end()
            self._text, self._at = match[self._kind], match.start(self._kind)
        elif self._all[self._end :].strip():
            self._at = self._end
            raise self._refused()
        else:
            self._kind, self._text, self._at = "end", "", len(self._all)

    def _refused(self) -> UnsupportedExpressionError:
        return UnsupportedExpressionError(
            f"CEL expression {self._all[:200]!r} is not supported at character {self._at}; allowed: comparisons of "
            f"device.driver, device.attributes and device.capacity, joined by &&, || and ! (docs/users/devices.md)"
        )
