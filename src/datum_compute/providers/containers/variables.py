"""References to environment variables in texts of a container, as Kubernetes expands them. Entry point: `expanded`."""

import re
from collections.abc import Mapping

_REFERENCE = re.compile(r"\$(?:\$|\(([^)]*)\))")


def expanded(text: str, variables: Mapping[str, str]) -> str:
    """`$(NAME)` becomes the value of the variable, and `$$` becomes `$`. A name that is not known stays as it is."""
    return _REFERENCE.sub(lambda match: _value(match, variables), text)


def _value(match: re.Match[str], variables: Mapping[str, str]) -> str:
    name = match[1]
    return "$" if name is None else variables.get(name, match[0])
