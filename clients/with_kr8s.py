"""kr8s, which finds kinds by discovery."""

import asyncio
import os

import kr8s
from kr8s.asyncio.objects import ConfigMap, new_class
from report import API_VERSION, NAMESPACE, Report, config_map, widget

Widget = new_class(kind="Widget", version=API_VERSION, namespaced=True, plural="widgets")


async def main() -> None:
    report = Report()
    api = await kr8s.asyncio.api(kubeconfig=os.environ["KUBECONFIG"])
    version = await api.version()
    report.note("version", [version["major"], version["minor"]])
    resources = [resource async for resource in _resources(api)]
    report.note(
        "widgets are served", [resource["name"] for resource in resources if resource.get("shortNames") == ["wdg"]]
    )
    made = await ConfigMap(config_map("kr8s", {"a": "1"}), api=api)
    await made.create()
    report.note("create", made.raw["data"].to_dict())
    await made.patch({"data": {"b": "2"}})
    report.note("patch", made.raw["data"].to_dict())
    await made.label(app="kr8s")
    names = [item.name async for item in api.get("configmaps", namespace=NAMESPACE, label_selector="app=kr8s")]
    report.note("get", names)
    await made.delete()
    await made.wait("delete", timeout=30)
    report.note("exists", await made.exists())
    object_ = await Widget(widget("kr8s", 1), api=api)
    await object_.create()
    await object_.patch({"status": {"phase": "Up"}}, subresource="status")
    await object_.wait("jsonpath='{.status.phase}'=Up", timeout=30)
    report.note("status", object_.raw["status"].to_dict())
    report.note("by short name", [item.name async for item in api.get(f"wdg.{API_VERSION}", namespace=NAMESPACE)])
    await object_.delete()
    try:
        await Widget.get("kr8s", namespace=NAMESPACE, api=api, timeout=0)
    except kr8s.NotFoundError:
        report.note("gone", True)
    report.print()


async def _resources(api):
    for resource in await api.api_resources():
        yield resource


asyncio.run(main())
