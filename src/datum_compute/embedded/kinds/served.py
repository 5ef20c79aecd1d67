"""A kind as a plane serves it. Entry point: `Served`."""

from collections.abc import Callable, Sequence
from functools import cached_property

from datum_compute.embedded.apply.fieldsets import Path, Type, type_of
from datum_compute.embedded.schemas.schema import Schema
from datum_compute.kube.errors import Cause
from datum_compute.kube.meta import Json

_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")


class Served:
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
        self.selectable = tuple(selectable)  # fields a field selector may name besides name and namespace
        self.builtin = builtin
        self.collectable = not builtin or namespaced or bool(cleanup)  # many at once; never all namespaces
        self.generations = generations  # whether metadata counts the changes of what is desired
        self.cleanup = cleanup  # a finalizer that deletion puts on
        self.verbs = tuple(verbs) or tuple(verb for verb in _VERBS if self.collectable or verb != "deletecollection")
        self.openapi = schema
        self._prepare = prepare
        self._check = check
        self.transition = transition  # what is wrong with a change, from both sides of it
        self._schema = Schema(schema)

    @classmethod
    def of(cls, definition: Json) -> "Served":
        """From a CustomResourceDefinition, of which one version is served."""
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
        """How the fields of its objects are told apart by whoever owns them."""
        return type_of(self.openapi, root=True)

    def unwritten(self, subresource: str) -> tuple[Path, ...]:
        """The fields that an endpoint leaves as they are."""
        if subresource == "status":
            return (("f:spec",),)
        return (("f:status",),) if self.has_status else ()

    def shaped(self, value: Json) -> Json:
        """The object as the schema allows it: unknown fields pruned, defaults filled in."""
        return self._schema.shape(self._prepare(value))

    def violations(self, value: Json) -> list[Cause]:
        return self._schema.violations(value) or self._check(value)
