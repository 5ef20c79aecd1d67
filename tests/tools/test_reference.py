"""The reference says what the tables say, completely, in tables that a Markdown reader can show."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from datum_compute.api import labels
from datum_compute.api.crd import OURS, definition
from datum_compute.api.permissions import PERMISSIONS
from datum_compute.api.reasons import REASONS
from datum_compute.api.roles import role_name
from datum_compute.operator.alerts import ALERTS
from datum_compute.operator.metrics import METRICS
from tools.reference import files, operator_files

PAGES = {**files(), **operator_files()}


def rows(page: str, title: str = "") -> list[list[str]]:
    """The cells of every table line below a heading, or of the whole page."""
    text = PAGES[page].partition(f"\n## {title}\n")[2].partition("\n## ")[0] if title else PAGES[page]
    lines = [line for line in text.splitlines() if line.startswith("|") and not line.startswith("| ---")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@pytest.mark.parametrize("page", sorted(PAGES))
def test_every_table_has_a_head_and_lines_of_one_width(page: str) -> None:
    for block in PAGES[page].split("\n\n"):
        lines = block.splitlines()
        if lines[0].startswith("|"):
            assert re.fullmatch(r"(\| --- )+\|", lines[1])
            assert len(lines) > 2
            assert len({line.count("|") for line in lines}) == 1


@pytest.mark.parametrize("page", sorted(PAGES))
def test_pages_contain_no_html_and_their_links_lead_somewhere(page: str) -> None:
    text = PAGES[page]
    assert text.startswith("# ")
    assert not re.search(r"<[a-z]", text)  # would be taken for HTML
    titles = {title.lower().replace(" ", "-") for title in re.findall(r"^## (.+)$", text, re.MULTILINE)}
    assert set(re.findall(r"\]\(#([^)]+)\)", text)) <= titles


def test_every_reason_is_explained_once_or_points_elsewhere() -> None:
    listed_names = [cells[0].strip("`") for cells in rows("reasons.md") if cells[0].startswith("`")]
    assert sorted(listed_names) == sorted(reason.name for reason in REASONS)
    by_name = {cells[0].strip("`"): cells for cells in rows("reasons.md")}
    for reason in REASONS:
        assert by_name[reason.name][1] == reason.sentence
    assert by_name["ImageUnavailable"][2].startswith("Check the image")
    assert by_name["PendingEvaluation"][2] == "5m"


def test_ranks_are_listed_from_the_highest() -> None:
    table = rows("reasons.md", "Which reason is reported")[1:]
    assert [int(cells[0]) for cells in table] == [8, 7, 6, 5, 4, 3, 2, 1]
    assert table[1] == ["7", "`NetworkFailedToCreate`", "`NetworkFailedToCreate`", table[1][3]]
    both = "`NetworkNotFound`, `SpecRefused`, `WriteForbidden`, `InstanceNameTaken`"
    assert table[2][:3] == ["6", "", both]
    more = ("`DeploymentNameTaken`", "`FederationFailed`", "`HubNamespaceTaken`")
    assert set(table[2][3].split(", ")) == {*both.split(", "), *more}


def test_every_label_annotation_and_finalizer_is_listed_with_who_sets_it() -> None:
    for title, marks in {
        "Labels": labels.LABELS,
        "Annotations": labels.ANNOTATIONS,
        "Finalizers": labels.FINALIZERS,
    }.items():
        listed = [cells[:3] for cells in rows("labels.md", title)[1:]]
        assert listed == [[f"`{mark.key}`", mark.on, mark.by] for mark in marks]


def test_every_permission_is_listed_below_its_role() -> None:
    text = PAGES["permissions.md"]
    for (who, on), rules in PERMISSIONS.items():
        for rule in rules:
            below = text.partition(f"\n`{role_name(who, on, rule.when)}`")[2]
            resources = ", ".join(f"`{resource}`" for resource in rule.resources)
            resources += f" {', '.join(f'`{name}`' for name in rule.names)}" if rule.names else ""
            line = f"| {rule.group or 'core'} | {resources} | {', '.join(rule.verbs)} | {rule.why} |"
            assert line in below.partition("\n`compute-")[0]


def fields(schema: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for name, field in schema.get("properties", {}).items():
        yield f"{prefix}{name}"
        items = field.get("items")
        yield from fields(items or field, f"{prefix}{name}{'[]' if items else ''}.")


SHARED = ("Instance template", "Instance spec", "Scale settings", "Condition")


def listed(title: str, prefix: str = "") -> Iterator[str]:
    """The paths below a heading, with those of the parts that it links to."""
    for path, type_, *_ in rows("kinds.md", title)[1:]:
        full = prefix + path.strip("`")
        yield full
        for part in SHARED:
            if f"[{part}]" in type_:
                yield from listed(part, f"{full}{'[]' if type_.startswith('list') else ''}.")


@pytest.mark.parametrize("kind", OURS, ids=lambda kind: kind.name)
def test_every_field_is_listed_in_its_kind_or_in_a_part_that_it_links_to(kind: Any) -> None:
    schema = definition(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    wanted = [path for path in fields(schema) if path.startswith(("spec", "status"))]
    assert list(listed(kind.name)) == wanted


def test_a_field_is_listed_with_type_requirement_default_and_description() -> None:
    described = {cells[0]: cells[1:] for cells in rows("kinds.md", "Scale settings")}
    assert described["`instanceManagementPolicy`"] == [
        "string",
        "yes",
        '`"OrderedReady"`',
        "How instances are created, replaced and deleted. OrderedReady, the only policy, does so one at a time.",
    ]
    assert described["`metrics[].resource.target.value`"][:3] == ["quantity", "", ""]
    by_path = {cells[0]: cells[1:] for cells in rows("kinds.md", "Workload")}
    assert by_path["`spec`"][:2] == ["object", "yes"]
    assert by_path["`spec.template`"][0] == "[Instance template](#instance-template)"
    assert all(cells[-1] for cells in rows("kinds.md")), "every field is described"


def test_every_metric_is_listed_with_its_labels_and_their_values() -> None:
    listed = {cells[0]: cells[1:] for cells in rows("metrics.md") if len(cells) == 6}
    for metric in METRICS:
        names = ", ".join(f"`{label.name}`" for label in metric.labels)
        assert listed[f"`{metric.name}`"][:2] == [metric.type.value, names]
        for label in metric.labels:
            described = [cells for cells in rows("metrics.md", "Labels") if cells[0] == f"`{label.name}`"]
            assert any(f"`{metric.name}`" in cells[1].split(", ") for cells in described)
    assert len(listed) == len(METRICS) + 1  # the head


def test_a_metric_names_the_alerts_that_use_it() -> None:
    alerts = {cells[0]: cells[5] for cells in rows("metrics.md") if len(cells) == 6}
    assert alerts["`compute_cell_name_held`"] == "[ComputeCellNameNotHeld](../runbooks/ComputeCellNameNotHeld.md)"
    linked = set(re.findall(r"\[(\w+)\]", " ".join(alerts.values())))
    assert linked == {alert.name for alert in ALERTS} - {"ComputeManagerAbsent"}  # whose metric is Prometheus' own
