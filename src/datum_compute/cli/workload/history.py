"""The store of a workload's revisions, a ConfigMap beside it. Entry points: `read`, `record`, `delete`.

The workload is written first and its revision after it; failing to write the revision is only a warning.
"""

from msgspec import Struct

from datum_compute.api import GROUP
from datum_compute.api.labels import WORKLOAD_NAME, WORKLOAD_UID
from datum_compute.api.workload import Workload
from datum_compute.cli.shell.failures import Exit, Failure
from datum_compute.cli.shell.run import Run
from datum_compute.cli.show.specs import image
from datum_compute.cli.talk.actor import actor
from datum_compute.cli.talk.project import Project, Read
from datum_compute.cli.workload.revisions import EXTERNAL, Entry, Revisions, spec_hash
from datum_compute.kube.errors import Forbidden
from datum_compute.kube.kinds import CONFIG_MAP
from datum_compute.kube.meta import Json, encode, owner_reference, timestamp

CURRENT = f"{GROUP}/current-revision"
_SCHEMA = f"{GROUP}/revision-schema"
_MANAGED_BY = "app.kubernetes.io/managed-by"


class Change(Struct, frozen=True):
    """A change to record. `before` is the workload before the change, None when it is new."""

    kind: str
    changes: str
    before: Read[Workload] | None
    source_rev: int = 0


def name_of(workload: str) -> str:
    return f"{GROUP}-revision-history.{workload}"


def read(project: Project, workload: Workload) -> Revisions:
    """The revisions of a workload; none if its history does not exist or may not be read."""
    try:
        config_map = project.find(CONFIG_MAP, name_of(workload.name))
    except Failure as failure:
        if isinstance(failure.__cause__, Forbidden):
            return Revisions()
        raise
    return _revisions(config_map.body(), workload) if config_map is not None else Revisions()


def record(run: Run, written: Read[Workload], change: Change) -> int:
    """Adds the revision of a workload that was just written; returns its number, or 0 if that failed."""
    try:
        return _record(run, written, change)
    except Failure as failure:
        run.terminal.warn(f"  warning: could not write revision history: {failure.message}")
        return 0


def delete(project: Project, workload: str) -> None:
    """Deletes the history of a workload; best effort."""
    try:
        config_map = project.find(CONFIG_MAP, name_of(workload))
        if config_map is not None:
            project.delete(CONFIG_MAP, config_map.object.name, config_map.object.metadata.uid)
    except Failure:
        return


def _record(run: Run, written: Read[Workload], change: Change) -> int:
    project, workload = run.project, written.object
    now, who = timestamp(run.clock.now()), actor(run)
    entry = _entry(written, change.kind, change.changes, now, who, change.source_rev)
    earlier = None
    if change.before is not None:
        earlier = _entry(change.before, EXTERNAL, "changed outside this program", now, "", 0)

    def extended(body: Json) -> Json:
        return _body(body, workload, _revisions(body, workload).with_write(entry, earlier))

    empty = CONFIG_MAP.body(name_of(workload.name), "default")
    current = project.find(CONFIG_MAP, name_of(workload.name))
    if current is None:
        try:
            stored = project.create(CONFIG_MAP, extended(empty))
        except Failure as failure:
            if failure.code is not Exit.CONFLICT:
                raise
            current = project.get(CONFIG_MAP, name_of(workload.name))
    if current is not None:
        stored = project.update(CONFIG_MAP, current, extended).after
    entries = _revisions(stored.body(), workload).entries
    return next(other.rev for other in reversed(entries) if other.same_write(entry))


def _revisions(body: Json, workload: Workload) -> Revisions:
    """The revisions in a ConfigMap; none if it belongs to an earlier workload of the same name."""
    metadata = body["metadata"]
    if (metadata.get("labels") or {}).get(WORKLOAD_UID) != workload.metadata.uid:
        return Revisions()
    return Revisions.of(body.get("data") or {}, (metadata.get("annotations") or {}).get(CURRENT, ""))


def _entry(read: Read[Workload], kind: str, changes: str, now: str, who: str, source: int) -> Entry:
    from datum_compute.api.template_hash import template_hash

    spec: Json = read.body()["spec"]
    return Entry(
        rev=0,
        timestamp=now,
        image=image(read.object.spec.template.spec, ""),
        changes=changes,
        actor=who,
        template_hash=template_hash(encode(spec.get("template") or {})),
        spec=encode(spec).decode(),
        kind=kind,
        spec_hash=spec_hash(spec),
        source_rev=source,
        generation=read.object.metadata.generation,
    )


def _body(body: Json, workload: Workload, revisions: Revisions) -> Json:
    """The ConfigMap with these revisions; everything in it that is not ours is kept."""
    metadata = body["metadata"]
    labels = {WORKLOAD_NAME: workload.name, WORKLOAD_UID: workload.metadata.uid, _MANAGED_BY: "datumctl-compute"}
    owner = owner_reference(workload)
    ours = {
        "labels": (metadata.get("labels") or {}) | labels,
        "annotations": (metadata.get("annotations") or {}) | {CURRENT: str(revisions.current), _SCHEMA: "1"},
        "ownerReferences": [owner | {"blockOwnerDeletion": False}],
    }
    return body | {"metadata": metadata | ours, "data": revisions.data()}
