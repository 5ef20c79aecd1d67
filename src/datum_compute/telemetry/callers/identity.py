"""Which project a request is for, and as whom. Entry points: `Rules`, `addressed`, `of_headers`, `of_token`.

Everything here decides without I/O. A project is named by the path or by the API server that passed the request on, and
by nothing else in a request.
"""

import re
from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from datum_compute.api.services import PARENT_API_GROUP, PARENT_NAME, PARENT_TYPE, PROJECT, RESOURCE_MANAGER_GROUP
from datum_compute.kube.errors import Forbidden, NotFound, Unauthorized
from datum_compute.kube.reviews import Caller

_PATH = re.compile(r"/projects/(?P<project>[a-z0-9]([-a-z0-9.]*[a-z0-9])?)/control-plane(?P<rest>/.*)", re.S)
_LONGEST_TOKEN = 32 * 1024


class Rules(Struct, frozen=True):
    """Who says for which project a request is.

    With `passed_on`, requests of the front proxy are believed. Where there is an `only` project, they are for that one,
    and so are requests with a token; elsewhere, Milo names the project. With `by_path`, a path names it, and its plane
    reviews the token.
    """

    passed_on: bool
    by_path: bool
    only: str = ""


class Address(Struct, frozen=True):
    project: str  # empty if the path does not name it
    path: str  # below the project's plane


def addressed(path: str, rules: Rules) -> Address:
    """Raises `NotFound` for a path that names a project where paths do not."""
    if not path.startswith("/projects/"):
        return Address("", path)
    match = _PATH.fullmatch(path)
    if match is None or not rules.by_path:
        raise NotFound(f"there is nothing at {path[:200]}")
    return Address(match["project"], match["rest"])


def of_headers(caller: Caller, rules: Rules) -> str:
    """The project of a caller that the front proxy names. Raises `Forbidden` when Milo names none."""
    if rules.only:
        return rules.only
    names, types = caller.extra.get(PARENT_NAME, ()), caller.extra.get(PARENT_TYPE, ())
    if types != (PROJECT.name,) or len(names) != 1 or not names[0]:
        raise Forbidden("logs are read in a project, and the request is for none; call the API of a project")
    return names[0]


def of_token(caller: Caller, project: str, rules: Rules) -> Caller:
    """The caller of a project's path, as the project's plane knows them. Raises `Forbidden` for another project's."""
    if rules.only:
        return caller
    named = caller.extra.get(PARENT_NAME, ())
    if named and named != (project,):
        raise Forbidden("the token is for another project")
    if not rules.passed_on:  # only Milo has parents
        return caller
    parents = {PARENT_NAME: (project,), PARENT_TYPE: (PROJECT.name,), PARENT_API_GROUP: (RESOURCE_MANAGER_GROUP,)}
    return replace(caller, extra=caller.extra | parents)


def bearer(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Raises `Unauthorized` without a token."""
    values = [value for name, value in headers if name.lower() == b"authorization"]
    scheme, _, token = (values[0] if len(values) == 1 else b"").decode("latin-1").partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not token or len(token) > _LONGEST_TOKEN:
        raise Unauthorized("a bearer token is needed")
    return token
