"""The sizes an instance can have. Entry point: `command`."""

import click

from datum_compute.api.instance_types import CATALOG, InstanceType
from datum_compute.cli.shell.failures import Exit, Failure
from datum_compute.cli.shell.flags import command as verb
from datum_compute.cli.shell.run import Run
from datum_compute.cli.shell.tree import Verbs
from datum_compute.cli.show.fragments import head
from datum_compute.cli.show.lines import Column, Piece, Table, good
from datum_compute.kube.meta import Json

_OUTPUTS = ("table", "json", "yaml", "name")


@verb("list", outputs=_OUTPUTS)
def list_(run: Run) -> None:
    """List the instance types."""
    match run.output:
        case "json" | "yaml":
            run.terminal.data([_document(one) for one in CATALOG.values()], run.output)
        case "name":
            for one in CATALOG.values():
                run.terminal.name(f"instancetype/{one.name}")
        case _:
            titles = ("NAME", "VCPU", "MEMORY", "STATUS")
            run.terminal.show(Table(tuple(map(Column, titles)), [_row(one) for one in CATALOG.values()]))


@verb("describe", outputs=_OUTPUTS)
@click.argument("instance_type", metavar="NAME")
def describe(run: Run, instance_type: str) -> None:
    """Describe an instance type."""
    found = CATALOG.get(instance_type)
    if found is None:
        raise Failure(f'instance type "{instance_type}" not found', Exit.NOT_FOUND, next_command="instance-types")
    match run.output:
        case "json" | "yaml":
            run.terminal.data(_document(found), run.output)
        case "name":
            run.terminal.name(f"instancetype/{found.name}")
        case _:
            run.terminal.show(
                head("Name", found.name),
                head("vCPU", _vcpus(found)),
                head("Memory", _memory(found)),
                head("Status", "Active"),
            )


def _row(one: InstanceType) -> tuple[Piece, ...]:
    return (one.name, _vcpus(one), _memory(one), good("Active"))


def _vcpus(one: InstanceType) -> str:
    return f"{one.millicores / 1000:g}"


def _memory(one: InstanceType) -> str:
    return f"{one.mebibytes / 1024:g} GiB"


def _document(one: InstanceType) -> Json:
    return {"name": one.name, "vcpus": one.millicores / 1000, "memoryMiB": one.mebibytes, "status": "Active"}


command = Verbs(
    "instance-types",
    "List the sizes an instance can have.",
    [list_, describe],
    bare="list",
    aliases={"ls": "list", "get": "describe"},
)
