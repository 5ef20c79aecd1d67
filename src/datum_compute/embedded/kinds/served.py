"""A kind as planes serve it. Entry point: `ServedKind`."""

from collections.abc import Callable, Sequence
from functools import cached_property

from datum_compute.embedded.apply.fieldsets import Path, Type, type_of
from datum_compute.embedded.schemas.schema import Schema
from datum_compute.kube.errors import BadRequest, Cause
from datum_compute.kube.meta import Json

_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")


class ServedKind:
    """Names, scope and schema of one kind, compiled once and shared by every plane that serves it."""

    def __init__(
        self,
        group: str,
        version: str,
        names: Json,
        *,
        namespaced: bool,
        schema: Json,
        status: bool,
        columns: Sequence[Json] = (),
        selectable: Sequence[str] = (),
        builtin: bool = False,
        generations: bool = True,
        cleanup: str = "",
        verbs: Sequence[str] = (),
        prepare: Callable[[Json], Json] = lambda value: value,
        check: Callable[[Json], list[Cause]] = lambda value: [],
        transition: Callable[[Json, Json], list[Cause]] = lambda before, after: [],
    ) -> None:
        self.group = group
        self.version = version
        self.kind: str = names["kind"]
        self.plural: str = names["plural"]
        self.singular: str = names.get("singular", self.kind.lower())
        self.list_kind: str = names.get("listKind", f"{self.kind}List")
        self.short_names: tuple[str, ...] = tuple(names.get("shortNames", ()))
        self.categories: tuple[str, ...] = tuple(names.get("categories", ()))
        self.namespaced = namespaced
        self.has_status = status
        self.columns = tuple(columns)  # additionalPrinterColumns
        self.selectable = tuple(selectable)  # fields that a field selector may use besides name and namespace
        self.builtin = builtin
        self.collectable = (
            not builtin or namespaced or bool(cleanup)
        )  # can be deleted many at once; never all namespaces
        self.generations = generations  # whether metadata.generation counts changes of the desired state
        self.cleanup = cleanup  # a finalizer that deletion adds
        self.verbs = tuple(verbs) or tuple(verb for verb in _VERBS if self.collectable or verb != "deletecollection")
        self.openapi = schema
        self._prepare = prepare
        self._check = check
        self.transition = transition  # the problems of a change, given the object before and after it
        self._schema = Schema(schema)

    @classmethod
    def of(cls, definition: Json) -> "ServedKind":
        """The kind of a CustomResourceDefinition, which serves one version."""
        spec = definition["spec"]
        version = next(version for version in spec["versions"] if version["served"])
        return cls(
            spec["group"],
            version["name"],
            spec["names"],
            namespaced=spec["scope"] == "Namespaced",
            schema=version["schema"]["openAPIV3Schema"],
            status="status" in version.get("subresources", {}),
            columns=version.get("additionalPrinterColumns", ()),
            selectable=[field["jsonPath"].lstrip(".") for field in version.get("selectableFields", ())],
        )

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def kind_name(self) -> str:
        return f"{self.kind}.{self.group}" if self.group else self.kind

    @cached_property
    def resource(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @cached_property
    def ownership(self) -> Type:
        """How its objects are split into fields that managers own."""
        return type_of(self.openapi, root=True)

    def unwritten(self, subresource: str) -> tuple[Path, ...]:
        """The fields that an endpoint does not write."""
        if subresource == "status":
            return (("f:spec",),)
        return (("f:status",),) if self.has_status else ()

    def shaped(self, value: Json) -> Json:
        """The object as the schema allows it: unknown fields pruned, defaults filled in."""
        return self._schema.shape(self._prepare(value))

    def violations(self, value: Json) -> list[Cause]:
        return self._schema.violations(value) or self._check(value)

    def mismatch(self, kind: object) -> BadRequest:
        """The error for an object of another kind."""
        return BadRequest(f'{kind} in version "{self.version}" cannot be handled as a {self.kind}')

    def undecodable(self, why: str) -> BadRequest:
        """The error for an object that cannot be decoded as this kind."""
        return BadRequest(f"{self.mismatch(self.kind)}: {why}")


def listed(causes: Sequence[Cause]) -> str:
    return ", ".join(f"{cause.field}: {cause.message}" for cause in causes)
