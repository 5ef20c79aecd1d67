"""The official Python client: typed, custom objects and dynamic."""

from kubernetes import client, config, dynamic, watch
from kubernetes.client import ApiException
from report import API_VERSION, GROUP, NAMESPACE, Report, owners, widget

report = Report()
api = config.new_client_from_config()


def refused(call) -> list:
    try:
        call()
    except ApiException as error:
        return [error.status, error.reason]
    return [0, "it was not refused"]


# Discovery
version = client.VersionApi(api).get_code()
report.note("version", [version.major, version.minor])
report.note("groups", GROUP in [group.name for group in client.ApisApi(api).get_api_versions().groups])
core = client.CoreV1Api(api)
report.note("config maps are served", [r.kind for r in core.get_api_resources().resources if r.name == "configmaps"])
custom = client.CustomObjectsApi(api)
report.note("widgets are served", sorted(r.name for r in custom.get_api_resources(GROUP, "v1").resources))

# Typed
body = client.V1ConfigMap(metadata=client.V1ObjectMeta(name="typed", labels={"app": "typed"}), data={"a": "1"})
made = core.create_namespaced_config_map(NAMESPACE, body)
report.note("create", [made.metadata.name, made.data, made.metadata.labels])
report.note("create again", refused(lambda: core.create_namespaced_config_map(NAMESPACE, body)))
report.note("patch", core.patch_namespaced_config_map("typed", NAMESPACE, {"data": {"b": "2"}}).data)
made = core.read_namespaced_config_map("typed", NAMESPACE)
made.data = {"c": "3"}
replaced = core.replace_namespaced_config_map("typed", NAMESPACE, made)
report.note("replace", replaced.data)
report.note("replace an old one", refused(lambda: core.replace_namespaced_config_map("typed", NAMESPACE, made)))
listed = core.list_namespaced_config_map(NAMESPACE, label_selector="app=typed")
report.note("list", [item.metadata.name for item in listed.items])
events = []
watching = watch.Watch()
core.patch_namespaced_config_map("typed", NAMESPACE, {"metadata": {"labels": {"more": "yes"}}})
core.delete_namespaced_config_map("typed", NAMESPACE, body=client.V1DeleteOptions(propagation_policy="Background"))
for event in watching.stream(
    core.list_namespaced_config_map,
    NAMESPACE,
    label_selector="app=typed",
    resource_version=replaced.metadata.resource_version,
    timeout_seconds=30,
):
    events.append([event["type"], event["object"].metadata.name])
    if event["type"] == "DELETED":
        watching.stop()
report.note("watch", events)
report.note("read what is gone", refused(lambda: core.read_namespaced_config_map("typed", NAMESPACE)))

# Custom objects
place = (GROUP, "v1", NAMESPACE, "widgets")
report.note("create widget", custom.create_namespaced_custom_object(*place, widget("custom", 1))["spec"])
report.note("invalid", refused(lambda: custom.create_namespaced_custom_object(*place, widget("other", 99))))
patched = custom.patch_namespaced_custom_object(*place, "custom", {"spec": {"size": 2}})
report.note("patch widget", [patched["spec"], patched["metadata"]["generation"]])
status = custom.patch_namespaced_custom_object_status(*place, "custom", {"status": {"phase": "Up"}})
report.note("patch status", [status["status"], status["metadata"]["generation"]])
report.note("delete widget", custom.delete_namespaced_custom_object(*place, "custom")["status"])

# Dynamic, with server-side apply
resources = dynamic.DynamicClient(api).resources
widgets = resources.get(api_version=API_VERSION, kind="Widget")
report.note("by short name", resources.get(short_names=["wdg"], group=GROUP).name)
applied = widgets.server_side_apply(body=widget("dynamic", 1), namespace=NAMESPACE, field_manager="one")
report.note("apply", [applied.spec.to_dict(), owners(applied.to_dict()["metadata"]["managedFields"])])
conflict = refused(
    lambda: widgets.server_side_apply(body=widget("dynamic", 2), namespace=NAMESPACE, field_manager="two")
)
report.note("conflict", conflict)
forced = widgets.server_side_apply(
    body=widget("dynamic", 2), namespace=NAMESPACE, field_manager="two", force_conflicts=True
)
report.note("force", [forced.spec.size, owners(forced.to_dict()["metadata"]["managedFields"])])
report.note("get", widgets.get(name="dynamic", namespace=NAMESPACE).spec.to_dict())
report.note("delete", widgets.delete(name="dynamic", namespace=NAMESPACE).status)

# Reviews
attributes = client.V1ResourceAttributes(namespace=NAMESPACE, verb="delete", group=GROUP, resource="widgets")
review = client.V1SelfSubjectAccessReview(spec=client.V1SelfSubjectAccessReviewSpec(resource_attributes=attributes))
answer = client.AuthorizationV1Api(api).create_self_subject_access_review(review)
report.note("may I", answer.status.allowed)
report.print()
