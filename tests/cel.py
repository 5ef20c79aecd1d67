"""As much of CEL, the language of admission policies, as ours are written in. Entry point: `evaluate`.

A real API server has the last word (`tests/engine/test_access.py`); this one needs no server, and is asked about many
more cases. As in CEL, an error on one side of `&&` and `||` does not matter when the other side decides.
"""

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

Variables = Mapping[str, Any]
Node = Callable[[Variables], Any]


class CelError(Exception):
    """What cannot be evaluated: a policy that fails closed refuses."""


class Optional:
    """A value that may be absent."""

    def __init__(self, *value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Optional) and _equal(self.value, other.value)

    __hash__ = None  # type: ignore[assignment]


_TOKEN = re.compile(
    r"\s*(?:(?P<text>'(?:[^'\\]|\\.)*')|(?P<number>[0-9]+)|(?P<name>[A-Za-z_][A-Za-z_0-9]*)"
    r"|(?P<sign>&&|\|\||==|!=|<=|>=|\.\?|\[\?|[-+!<>()\[\]{}.,:?]))"
)


def evaluate(expression: str, variables: Variables) -> Any:
    parser = _Parser(expression)
    node = parser.ternary()
    if parser.token is not None:
        raise SyntaxError(f"{parser.token} is left of {expression}")
    return node(variables)


class _Parser:
    def __init__(self, text: str) -> None:
        self._tokens = self._split(text)
        self.token: tuple[str, str] | None = None
        self._next()

    @staticmethod
    def _split(text: str) -> Any:
        position, text = 0, text.rstrip()
        while position < len(text):
            found = _TOKEN.match(text, position)
            if found is None:
                raise SyntaxError(f"unreadable: {text[position:]}")
            position = found.end()
            assert found.lastgroup is not None
            yield found.lastgroup, found[found.lastgroup]

    def _next(self) -> tuple[str, str] | None:
        before, self.token = self.token, next(self._tokens, None)
        return before

    def _take(self, *signs: str) -> str:
        """The sign that comes next, if it is one of these."""
        if self.token is not None and self.token[1] in signs and self.token[0] != "text":
            taken = self._next()
            assert taken is not None
            return taken[1]
        return ""

    def _expect(self, sign: str) -> None:
        if not self._take(sign):
            raise SyntaxError(f"{sign} expected, not {self.token}")

    def _word(self) -> str:
        token = self._next()
        if token is None or token[0] != "name":
            raise SyntaxError(f"a name expected, not {token}")
        return token[1]

    def ternary(self) -> Node:
        condition = self._or()
        if not self._take("?"):
            return condition
        then = self.ternary()
        self._expect(":")
        otherwise = self.ternary()
        return lambda variables: then(variables) if _truth(condition(variables)) else otherwise(variables)

    def _or(self) -> Node:
        node = self._and()
        while self._take("||"):
            node = _either(node, self._and(), decides=True)
        return node

    def _and(self) -> Node:
        node = self._relation()
        while self._take("&&"):
            node = _either(node, self._relation(), decides=False)
        return node

    def _relation(self) -> Node:
        node = self._sum()
        while sign := self._take("==", "!=", "<", ">", "<=", ">=", "in"):
            node = _related(sign, node, self._sum())
        return node

    def _sum(self) -> Node:
        node = self._unary()
        while self._take("+"):
            node = _joined(node, self._unary())
        return node

    def _unary(self) -> Node:
        if self._take("!"):
            negated = self._unary()
            return lambda variables: not _truth(negated(variables))
        return self._member()

    def _member(self) -> Node:
        node = self._primary()
        while sign := self._take(".", ".?", "[", "[?"):
            if sign in ("[", "[?"):
                key = self.ternary()
                self._expect("]")
                node = _indexed(node, key, optional=sign == "[?")
                continue
            name = self._word()
            if sign == "." and self._take("("):
                node = self._method(node, name)
            else:
                node = _indexed(node, _constant(name), optional=sign == ".?")
        return node

    def _method(self, node: Node, name: str) -> Node:
        if name in ("all", "exists"):
            variable = self._word()
            self._expect(",")
            check = self.ternary()
            self._expect(")")
            return _quantified(node, name, variable, check)
        return _called(node, name, self._arguments(")"))

    def _arguments(self, end: str) -> list[Node]:
        found: list[Node] = []
        while not self._take(end):
            found.append(self.ternary())
            if not self._take(","):
                self._expect(end)
                break
        return found

    def _primary(self) -> Node:
        if self._take("("):
            node = self.ternary()
            self._expect(")")
            return node
        if self._take("["):
            elements = self._arguments("]")
            return lambda variables: [element(variables) for element in elements]
        if self._take("{"):
            self._expect("}")
            return _constant({})
        token = self._next()
        match token:
            case ("text", text):
                return _constant(re.sub(r"\\(.)", r"\1", text[1:-1]))
            case ("number", digits):
                return _constant(int(digits))
            case ("name", "true" | "false" | "null" as word):
                return _constant({"true": True, "false": False, "null": None}[word])
            case ("name", name) if self._take("("):
                return _function(name, self._arguments(")"))
            case ("name", name):
                return lambda variables: variables[name]
        raise SyntaxError(f"{token} where a value belongs")


def _constant(value: Any) -> Node:
    return lambda variables: value


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise CelError(f"{value!r} is neither true nor false")
    return value


def _either(left: Node, right: Node, *, decides: bool) -> Node:
    def node(variables: Variables) -> bool:
        try:
            if _truth(left(variables)) is decides:
                return decides
        except CelError:
            if _truth(right(variables)) is decides:
                return decides
            raise
        return _truth(right(variables))

    return node


def _related(sign: str, left: Node, right: Node) -> Node:
    def node(variables: Variables) -> bool:
        one, other = left(variables), right(variables)
        match sign:
            case "==":
                return _equal(one, other)
            case "!=":
                return not _equal(one, other)
            case "in" if isinstance(other, dict | list):
                return any(_equal(one, element) for element in other)
        if type(one) is not type(other) or not isinstance(one, int | str | datetime):
            raise CelError(f"{one!r} {sign} {other!r}")
        return bool({"<": one < other, ">": one > other, "<=": one <= other, ">=": one >= other}[sign])

    return node


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, bool) != isinstance(other, bool):
        return False
    match one, other:
        case dict(), dict():
            return one.keys() == other.keys() and all(_equal(one[key], other[key]) for key in one)
        case list() | tuple(), list() | tuple():
            return len(one) == len(other) and all(map(_equal, one, other))
    return bool(one == other)


def _joined(left: Node, right: Node) -> Node:
    def node(variables: Variables) -> str:
        one, other = left(variables), right(variables)
        if not isinstance(one, str) or not isinstance(other, str):
            raise CelError(f"{one!r} + {other!r}")
        return one + other

    return node


def _indexed(of: Node, key: Node, *, optional: bool) -> Node:
    def node(variables: Variables) -> Any:
        holder, name = of(variables), key(variables)
        if isinstance(holder, Optional):  # from there on everything is optional
            if not holder.value:
                return holder
            return _found(holder.value[0], name)
        if optional:
            return _found(holder, name)
        if not isinstance(holder, dict) or name not in holder:
            raise CelError(f"no such key: {name}")
        return holder[name]

    return node


def _found(holder: Any, name: Any) -> Optional:
    if not isinstance(holder, dict):
        raise CelError(f"{holder!r} has no fields")
    return Optional(holder[name]) if name in holder else Optional()


def _quantified(of: Node, name: str, variable: str, check: Node) -> Node:
    def node(variables: Variables) -> bool:
        combine = all if name == "all" else any
        return combine(_truth(check({**variables, variable: element})) for element in of(variables))

    return node


def _called(of: Node, name: str, arguments: list[Node]) -> Node:
    def node(variables: Variables) -> Any:
        holder, given = of(variables), [argument(variables) for argument in arguments]
        if name == "orValue":
            if not isinstance(holder, Optional):
                raise CelError(f"{holder!r} is not optional")
            return holder.value[0] if holder.value else given[0]
        if name == "hasValue":
            return bool(holder.value)
        if not isinstance(holder, str):
            raise CelError(f"{holder!r} has no {name}")
        match name:
            case "startsWith":
                return holder.startswith(given[0])
            case "endsWith":
                return holder.endswith(given[0])
            case "substring":
                return holder[given[0] :]
            case "matches":
                return re.search(re.sub(r"\$$", r"\\Z", given[0]), holder) is not None  # $ is the very end
        raise SyntaxError(f"unknown method {name}")

    return node


def _function(name: str, arguments: list[Node]) -> Node:
    (argument,) = arguments

    def node(variables: Variables) -> Any:
        value = argument(variables)
        match name:
            case "size":
                return len(value)
            case "timestamp":
                try:
                    return datetime.fromisoformat(value)
                except ValueError as error:
                    raise CelError(str(error)) from None
        raise SyntaxError(f"unknown function {name}")

    return node
