"""Label and field selectors. Entry points: `LabelSelector.parse`, `LabelSelector.of`, `FieldSelector.parse`."""

import re
from collections.abc import Mapping, Sequence

from msgspec import Struct

from datum_compute.kube.errors import BadRequest


class Requirement(Struct, frozen=True):
    key: str
    operator: str  # In, NotIn, Exists, DoesNotExist, Gt, Lt
    values: tuple[str, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        match self.operator:
            case "In":
                return labels.get(self.key) in self.values
            case "NotIn":
                return labels.get(self.key) not in self.values
            case "Exists":
                return self.key in labels
            case "DoesNotExist":
                return self.key not in labels
            case "Gt" | "Lt":
                value = labels.get(self.key, "")
                limit = int(self.values[0])
                return bool(_NUMBER.fullmatch(value)) and (
                    int(value) > limit if self.operator == "Gt" else int(value) < limit
                )
        raise BadRequest(f'"{self.operator}" is not a valid label selector operator')

    def __str__(self) -> str:
        match self.operator:
            case "In" if len(self.values) == 1:
                return f"{self.key}={self.values[0]}"
            case "In" | "NotIn":
                return f"{self.key} {self.operator.lower()} ({','.join(self.values)})"
            case "Exists":
                return self.key
            case "Gt" | "Lt":
                return f"{self.key}{'>' if self.operator == 'Gt' else '<'}{self.values[0]}"
        return f"!{self.key}"


_NUMBER = re.compile(r"-?[0-9]{1,18}")
_PART = r"[A-Za-z0-9]([A-Za-z0-9_.\-]*[A-Za-z0-9])?"
_NAME = rf"({_PART}/)?{_PART}"
_TERM = re.compile(
    rf"""\s*(?:
      !\s*(?P<absent>{_NAME})
    | (?P<set_key>{_NAME})\s+(?P<set_op>in|notin)\s*\((?P<values>[^()]*)\)
    | (?P<limited>{_NAME})\s*(?P<than>[<>])\s*(?P<limit>-?[0-9]{{1,18}})
    | (?P<key>{_NAME})\s*(?P<op>==|=|!=)\s*(?P<value>[A-Za-z0-9_.\-]*)
    | (?P<present>{_NAME})
    )\s*(?:,(?=\s*\S)|$)""",
    re.VERBOSE,
)


class LabelSelector(Struct, frozen=True):
    requirements: tuple[Requirement, ...] = ()

    @classmethod
    def parse(cls, text: str) -> "LabelSelector":
        """Parses a query parameter such as `a=b,c!=d,e in (f,g),h,!i`."""
        requirements: list[Requirement] = []
        position = 0
        while position < len(text):
            term = _TERM.match(text, position)
            if term is None or term.end() == position:
                raise BadRequest(f'unable to parse label selector "{text}" at "{text[position:]}"')
            requirements.append(_requirement(term))
            position = term.end()
        return cls(tuple(requirements))

    @classmethod
    def of(cls, match_labels: Mapping[str, str], match_expressions: Sequence[Requirement] = ()) -> "LabelSelector":
        equal = tuple(Requirement(key, "In", (value,)) for key, value in sorted(match_labels.items()))
        return cls(equal + tuple(match_expressions))

    def matches(self, labels: Mapping[str, str]) -> bool:
        return all(requirement.matches(labels) for requirement in self.requirements)

    def __str__(self) -> str:
        return ",".join(map(str, self.requirements))


def _requirement(term: re.Match[str]) -> Requirement:
    group = term.groupdict()
    if group["absent"]:
        return Requirement(group["absent"], "DoesNotExist")
    if group["set_key"]:
        values = tuple(value.strip() for value in group["values"].split(","))
        return Requirement(group["set_key"], "In" if group["set_op"] == "in" else "NotIn", values)
    if group["limited"]:
        return Requirement(group["limited"], "Gt" if group["than"] == ">" else "Lt", (group["limit"],))
    if group["key"]:
        return Requirement(group["key"], "NotIn" if group["op"] == "!=" else "In", (group["value"],))
    return Requirement(group["present"], "Exists")


class FieldSelector(Struct, frozen=True):
    """Selects by name and namespace, and by the fields that a kind declares as selectable."""

    terms: tuple[tuple[str, bool, str], ...] = ()  # field, must be equal, value

    @classmethod
    def parse(cls, text: str, selectable: Sequence[str] = ()) -> "FieldSelector":
        fields = (*_METADATA, *selectable)
        terms = []
        for term in filter(None, text.split(",")):
            field, operator, value = re.split(r"(==|!=|=)", term, maxsplit=1) if "=" in term else (term, "", "")
            if not operator or field not in fields:
                choice = f"{', '.join(fields[:-1])} or {fields[-1]}"
                raise BadRequest(f'field label not supported: "{field}"; use {choice}')
            terms.append((field, operator != "!=", value))
        return cls(tuple(terms))

    @property
    def needs_object(self) -> bool:
        return any(field not in _METADATA for field, _, _ in self.terms)

    def matches(self, namespace: str, name: str, object_: Mapping[str, object] | None = None) -> bool:
        """`object_` is needed only where `needs_object` says so."""
        actual = {"metadata.name": name, "metadata.namespace": namespace}
        return all(
            ((actual[field] if field in actual else _text_at(object_, field)) == value) == equal
            for field, equal, value in self.terms
        )


_METADATA = ("metadata.name", "metadata.namespace")


def _text_at(value: object, path: str) -> str:
    """A field as text, which is how selectors compare it; "" when it is missing."""
    for part in path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, (str, int)) else ""
