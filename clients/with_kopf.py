"""An operator in kopf: it watches widgets, writes their status, and keeps them until it has cleaned up."""

import asyncio
import threading

import kopf
from kubernetes import client, config
from report import API_VERSION, GROUP, NAMESPACE, Report, widget

report = Report()
changes: list[list[object]] = []
done = {name: threading.Event() for name in ("created", "updated", "deleted")}
stop = threading.Event()
ready = threading.Event()


@kopf.on.startup()
def configure(settings: kopf.OperatorSettings, **_) -> None:
    settings.persistence.finalizer = f"{GROUP}/finalizer"
    settings.posting.enabled = False


@kopf.on.create(API_VERSION, "widgets")
def created(spec, patch, **_) -> None:
    changes.append(["created", spec["size"]])
    patch.status["phase"] = "Up"
    done["created"].set()


@kopf.on.update(API_VERSION, "widgets", field="spec")
def updated(old, new, **_) -> None:
    changes.append(["updated", old["size"], new["size"]])
    done["updated"].set()


@kopf.on.delete(API_VERSION, "widgets")
def deleted(spec, **_) -> None:
    changes.append(["deleted", spec["size"]])
    done["deleted"].set()


def operate() -> None:
    asyncio.run(kopf.operator(namespaces=[NAMESPACE], standalone=True, stop_flag=stop, ready_flag=ready))


def until(condition) -> None:
    for _ in range(300):
        if condition():
            return
        threading.Event().wait(0.1)
    raise SystemExit(f"it did not happen in time: {changes}")


operator = threading.Thread(target=operate)
operator.start()
try:
    assert ready.wait(30)
    widgets = client.CustomObjectsApi(config.new_client_from_config())
    place = (GROUP, "v1", NAMESPACE, "widgets")
    widgets.create_namespaced_custom_object(*place, widget("operated", 1))
    assert done["created"].wait(30)
    until(lambda: widgets.get_namespaced_custom_object(*place, "operated").get("status", {}).get("phase") == "Up")
    held = widgets.get_namespaced_custom_object(*place, "operated")["metadata"]["finalizers"]
    report.note("held", [finalizer.partition("/")[2] for finalizer in held])
    widgets.patch_namespaced_custom_object(*place, "operated", {"spec": {"size": 2}})
    assert done["updated"].wait(30)
    widgets.delete_namespaced_custom_object(*place, "operated")
    assert done["deleted"].wait(30)
    until(lambda: not widgets.list_namespaced_custom_object(*place)["items"])
    report.note("seen", changes)
finally:
    stop.set()
    operator.join()
report.print()
