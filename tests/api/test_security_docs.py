"""docs/security.md lists everything that cells can reach."""

import re
from pathlib import Path

import pytest

from datum_compute.api.permissions import PERMISSIONS, On, When, Who
from datum_compute.api.policies import POLICIES, files
from datum_compute.api.roles import role_name

TEXT = (Path(__file__).parents[2] / "docs" / "security.md").read_text("utf-8")
CELLS = TEXT.partition("## Cells")[2].partition("\n## ")[0]


@pytest.mark.parametrize("on", [On.HUB, On.PROJECT])
def test_everything_a_cell_may_do_on_other_planes_is_documented(on: On) -> None:
    rows = [line for line in CELLS.splitlines() if line.startswith(f"| {on.value}")]
    listed = {resource for row in rows for resource in re.findall(r"`([a-z/]+)`", row.split("|")[2])}
    assert listed == {resource for rule in PERMISSIONS[Who.CELL, on] for resource in rule.resources}


def test_a_cell_may_not_read_secrets_or_config_maps_on_other_planes() -> None:
    for on in (On.HUB, On.PROJECT):
        assert not {"secrets", "configmaps"} & {
            resource for rule in PERMISSIONS[Who.CELL, on] for resource in rule.resources
        }


def test_documented_files_policies_and_roles_exist() -> None:
    assert {f"{plane}.yaml" for plane in re.findall(r"`deploy/policies/([a-z]+)/`", TEXT)} == set(files())
    assert set(re.findall(r"`(compute-[a-z-]+-on-(?:project|hub))`", TEXT)) <= {
        *(policy.name for policy in POLICIES),
        *(role_name(who, on, When.ALWAYS) for who, on in PERMISSIONS),
    }
    assert role_name(Who.USER, On.PROJECT, When.CITY_RESTART) in TEXT
