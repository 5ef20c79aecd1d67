"""The embedded engine with the kinds of compute. Entry point: `compute_engine`."""

from functools import partial

from datum_compute.api.crd import by_role
from datum_compute.embedded.engine import Engine
from datum_compute.embedded.mounts import Mount
from datum_compute.federation.roles import PROJECT

# Where Milo has the planes of projects, and a shorter way to the same.
_PROJECTS = (
    Mount(PROJECT, "project", "/apis/resourcemanager.miloapis.com/v1alpha1/projects", "control-plane"),
    Mount(PROJECT, "project", "/projects", "control-plane"),
)

compute_engine = partial(Engine, definitions=by_role, mounts=_PROJECTS)
