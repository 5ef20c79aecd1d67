"""The sizes an instance can have. Entry point: `command`."""

import click

from datum_compute.api.instance_types import CATALOG, InstanceType
from datum_compute.cli.shell.failures import Exit, Failure
from datum_compute.cli.shell.flags import verb
from datum_compute.cli.shell.run import Run
from datum_compute.cli.shell.tree import listing_verbs
from datum_compute.cli.show.fragments import labelled_line
from datum_compute.cli.show.lines import good, table
from datum_compute.cli.show.views import Page, View
from datum_compute.kube.meta import Json

_OUTPUTS = ("table", "json", "yaml", "name")


@verb("list", outputs=_OUTPUTS)
def list_(run: Run) -> View:
    """List the instance types."""
    types = CATALOG.values()
    rows = [(type_.name, _vcpus(type_), _memory(type_), good("Active")) for type_ in types]
    records = {f"instancetype/{type_.name}": _document(type_) for type_ in types}
    page = Page([table(("NAME", "VCPU", "MEMORY", "STATUS"), rows)])
    return View(lambda _now: page, list(records.values()), records)


@verb("describe", outputs=_OUTPUTS)
@click.argument("instance_type", metavar="NAME")
def describe(run: Run, instance_type: str) -> View:
    """Describe an instance type."""
    type_ = CATALOG.get(instance_type)
    if type_ is None:
        raise Failure(f'instance type "{instance_type}" not found', Exit.NOT_FOUND, next_command="instance-types")
    facts = {"Name": type_.name, "vCPU": _vcpus(type_), "Memory": _memory(type_), "Status": "Active"}
    page = Page([labelled_line(label, value) for label, value in facts.items()])
    document = _document(type_)
    return View(lambda _now: page, document, {f"instancetype/{type_.name}": document})


def _vcpus(type_: InstanceType) -> str:
    return f"{type_.millicores / 1000:g}"


def _memory(type_: InstanceType) -> str:
    return f"{type_.mebibytes / 1024:g} GiB"


def _document(type_: InstanceType) -> Json:
    return {"name": type_.name, "vcpus": type_.millicores / 1000, "memoryMiB": type_.mebibytes, "status": "Active"}


command = listing_verbs("instance-types", "List the sizes an instance can have.", list_, describe)
