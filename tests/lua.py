"""Runs scripts in the small part of Lua that Karmada's interpreters here are written in. Entry point: `load`.

With it `make test` proves what the scripts do, without Karmada and its Lua. Whatever is not in that part is a
`SyntaxError`.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any

_TOKEN = re.compile(r"\s+|--[^\n]*|(\d+|'[^']*'|[A-Za-z_]\w*|==|~=|<=|>=|[-+*#<>=(){}\[\].,])")
_BINARY = {"or": 1, "and": 2, "<": 3, ">": 3, "<=": 3, ">=": 3, "~=": 3, "==": 3, "+": 4, "-": 4, "*": 5}
_UNARY_BINDS = 6
_LITERALS = {"nil": None, "true": True, "false": False}

Scope = dict[str, Any]
Run = Callable[[Scope], Any]


class Table(dict[Any, Any]):
    """Keys to values; a list has the keys 1, 2, ... What is nil is not there."""

    @property
    def border(self) -> int:
        return next(n for n in range(len(self) + 1) if n + 1 not in self)


class _Return(Exception):
    def __init__(self, value: Any) -> None:
        self.value = value


def to_lua(value: Any) -> Any:
    if isinstance(value, dict):
        return Table({key: to_lua(item) for key, item in value.items() if item is not None})
    if isinstance(value, list):
        return Table({number: to_lua(item) for number, item in enumerate(value, 1)})
    return value


def from_lua(value: Any) -> Any:
    """A table with the keys of a list is one; an empty table is an object."""
    if not isinstance(value, Table):
        return value
    if value and value.border == len(value):
        return [from_lua(value[number]) for number in range(1, len(value) + 1)]
    return {key: from_lua(item) for key, item in value.items()}


def load(script: str, function: str) -> Callable[..., Any]:
    """A function of a script, over JSON values."""
    scope: Scope = {"ipairs": _ipairs, "next": lambda table: next(iter(table), None)}
    parser = _Parser(script)
    while parser.token:
        parser.statement()(scope)
    return lambda *arguments: from_lua(scope[function](*map(to_lua, arguments)))


def _ipairs(table: Table) -> Iterator[tuple[int, Any]]:
    return ((number, table[number]) for number in range(1, table.border + 1))


class _Parser:
    """Turns tokens into functions over a scope. Every block has the scope of its function: names are never reused."""

    def __init__(self, script: str) -> None:
        self._tokens: list[str] = []
        at = 0
        while at < len(script):
            match = _TOKEN.match(script, at)
            if match is None:
                raise SyntaxError(f"no Lua that is known here: {script[at : at + 20]!r}")
            at = match.end()
            if match[1]:
                self._tokens.append(match[1])

    @property
    def token(self) -> str:
        return self._tokens[0] if self._tokens else ""

    def _take(self, *expected: str) -> str:
        if not self._tokens or (expected and self.token not in expected):
            raise SyntaxError(f"{self.token or 'the end'} instead of {' or '.join(expected)}")
        return self._tokens.pop(0)

    def _is(self, token: str) -> bool:
        return self.token == token and bool(self._take())

    def _names(self, end: str) -> list[str]:
        names: list[str] = []
        while not self._is(end):
            names.append(self._take())
            self._is(",")
        return names

    # Statements

    def _block(self, *ends: str) -> Run:
        statements: list[Run] = []
        while self.token not in ends:
            statements.append(self.statement())

        def run(scope: Scope) -> None:
            for statement in statements:
                statement(scope)

        return run

    def statement(self) -> Run:
        match self.token:
            case "function":
                return self._function()
            case "if":
                return self._if()
            case "for":
                return self._for()
            case "return":
                self._take()
                value = self._expression()
                return lambda scope: _raise(_Return(value(scope)))
        self._is("local")
        return self._assignment()

    def _function(self) -> Run:
        self._take("function")
        name, _ = self._take(), self._take("(")
        names, body = self._names(")"), self._block("end")
        self._take("end")

        def define(scope: Scope) -> None:
            def call(*arguments: Any) -> Any:
                try:
                    body(scope | dict(zip(names, arguments, strict=True)))
                except _Return as result:
                    return result.value

            scope[name] = call

        return define

    def _if(self) -> Run:
        self._take("if", "elseif")
        condition = self._expression()
        self._take("then")
        then = self._block("else", "elseif", "end")
        if self.token == "elseif":
            otherwise = self._if()
        else:
            otherwise = self._block("end") if self._is("else") else lambda scope: None
            self._take("end")
        return lambda scope: then(scope) if _holds(condition(scope)) else otherwise(scope)

    def _for(self) -> Run:
        self._take("for")
        names, items = self._names("in"), self._expression()
        self._take("do")
        body = self._block("end")
        self._take("end")

        def run(scope: Scope) -> None:
            for values in items(scope):
                scope.update(zip(names, values, strict=True))
                body(scope)

        return run

    def _assignment(self) -> Run:
        name = self._take()
        if not name.isidentifier():
            raise SyntaxError(f"nothing can be assigned to {name}")
        if self._is("="):
            value = self._expression()
            return lambda scope: scope.update({name: value(scope)})
        table: Run = lambda scope: scope[name]  # noqa: E731
        key = self._key()
        while not self._is("="):
            table, key = _indexed(table, key), self._key()
        value = self._expression()
        return lambda scope: _set(table(scope), key(scope), value(scope))

    # Expressions

    def _expression(self, binds: int = 0) -> Run:
        left = self._unary()
        while (rank := _BINARY.get(self.token, 0)) > binds:
            left = _binary(self._take(), left, self._expression(rank))
        return left

    def _unary(self) -> Run:
        if self._is("not"):
            operand = self._expression(_UNARY_BINDS)
            return lambda scope: not _holds(operand(scope))
        if self._is("#"):
            operand = self._expression(_UNARY_BINDS)
            return lambda scope: operand(scope).border
        value = self._primary()
        while self.token in (".", "[", "("):
            value = self._call(value) if self._is("(") else _indexed(value, self._key())
        return value

    def _primary(self) -> Run:
        token = self._take()
        if token == "(":
            inner = self._expression()
            self._take(")")
            return inner
        if token == "{":
            return self._list()
        if token in _LITERALS or token.isdecimal() or token.startswith("'"):
            literal = _LITERALS[token] if token in _LITERALS else int(token) if token.isdecimal() else token[1:-1]
            return lambda scope: literal
        if not token.isidentifier():
            raise SyntaxError(f"no value begins with {token}")
        return lambda scope: scope.get(token)

    def _list(self) -> Run:
        items = self._items("}")
        return lambda scope: Table({number: item(scope) for number, item in enumerate(items, 1)})

    def _items(self, end: str) -> list[Run]:
        items: list[Run] = []
        while not self._is(end):
            items.append(self._expression())
            self._is(",")
        return items

    def _call(self, function: Run) -> Run:
        arguments = self._items(")")
        return lambda scope: function(scope)(*(argument(scope) for argument in arguments))

    def _key(self) -> Run:
        if self._is("."):
            name = self._take()
            return lambda scope: name
        self._take("[")
        key = self._expression()
        self._take("]")
        return key


def _raise(error: Exception) -> None:
    raise error


def _holds(value: Any) -> bool:
    return value is not None and value is not False


def _indexed(table: Run, key: Run) -> Run:
    return lambda scope: table(scope).get(key(scope))


def _set(table: Table, key: Any, value: Any) -> None:
    if value is None:
        table.pop(key, None)
    else:
        table[key] = value


def _binary(operator: str, left: Run, right: Run) -> Run:
    match operator:
        case "and":
            return lambda scope: right(scope) if _holds(value := left(scope)) else value
        case "or":
            return lambda scope: value if _holds(value := left(scope)) else right(scope)
        case "==":
            return lambda scope: _equal(left(scope), right(scope))
        case "~=":
            return lambda scope: not _equal(left(scope), right(scope))
        case "+":
            return lambda scope: left(scope) + right(scope)
        case "-":
            return lambda scope: left(scope) - right(scope)
        case "*":
            return lambda scope: left(scope) * right(scope)
        case "<":
            return lambda scope: left(scope) < right(scope)
        case ">":
            return lambda scope: left(scope) > right(scope)
        case "<=":
            return lambda scope: left(scope) <= right(scope)
    return lambda scope: left(scope) >= right(scope)


def _equal(one: Any, other: Any) -> bool:
    """Tables are equal when they are the same one."""
    return one is other if isinstance(one, Table) else bool(one == other and type(one) is type(other))
