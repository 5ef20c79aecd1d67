"""lightkube, with server-side apply."""

from lightkube import ApiError, Client
from lightkube.generic_resource import create_namespaced_resource
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import ConfigMap
from lightkube.types import PatchType
from report import GROUP, NAMESPACE, Report, owners, widget

report = Report()
client = Client(namespace=NAMESPACE, field_manager="lightkube")
Widget = create_namespaced_resource(GROUP, "v1", "Widget", "widgets")


def refused(call) -> list:
    try:
        call()
    except ApiError as error:
        return [error.status.code, error.status.reason, error.status.message]
    return [0, "", "it was not refused"]


made = client.create(ConfigMap(metadata=ObjectMeta(name="light", namespace=NAMESPACE), data={"a": "1"}))
report.note("create", made.data)
patched = client.patch(ConfigMap, "light", {"data": {"b": "2"}}, patch_type=PatchType.MERGE)
report.note("patch", patched.data)
made = client.get(ConfigMap, "light")
made.data["c"] = "3"
report.note("replace", client.replace(made).data)
client.delete(ConfigMap, "light")
events = []
for operation, object_ in client.watch(
    ConfigMap, fields={"metadata.name": "light"}, resource_version=patched.metadata.resourceVersion
):
    events.append([operation, object_.data])
    if operation == "DELETED":
        break
report.note("watch", events)
applied = client.apply(Widget(**{k: v for k, v in widget("light", 1).items() if k in ("metadata", "spec")}))
report.note("apply", [applied.spec, owners(applied.to_dict()["metadata"]["managedFields"])])
other = Widget(**{k: v for k, v in widget("light", 2).items() if k in ("metadata", "spec")})
report.note("conflict", refused(lambda: client.apply(other, field_manager="other")))
report.note("force", client.apply(other, field_manager="other", force=True).spec)
report.note("list", [item.metadata.name for item in client.list(Widget)])
client.delete(Widget, "light")
report.note("gone", refused(lambda: client.get(Widget, "light"))[:2])
report.print()
