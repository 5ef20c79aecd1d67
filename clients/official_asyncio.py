"""kubernetes_asyncio."""

import asyncio

from kubernetes_asyncio import client, config, watch
from kubernetes_asyncio.client import ApiException
from report import GROUP, NAMESPACE, Report, config_map, owners, widget


async def main() -> None:
    report = Report()
    async with await config.new_client_from_config() as api:
        version = await client.VersionApi(api).get_code()
        report.note("version", [version.major, version.minor])
        core = client.CoreV1Api(api)
        made = await core.create_namespaced_config_map(NAMESPACE, config_map("asyncio", {"a": "1"}))
        report.note("create", made.data)
        events = []
        watching = watch.Watch()

        async def follow() -> None:
            async for event in watching.stream(
                core.list_namespaced_config_map,
                NAMESPACE,
                field_selector="metadata.name=asyncio",
                resource_version=made.metadata.resource_version,
                timeout_seconds=30,
            ):
                events.append([event["type"], event["object"].data])
                if event["type"] == "DELETED":
                    return

        following = asyncio.create_task(follow())
        patched = await core.patch_namespaced_config_map("asyncio", NAMESPACE, {"data": {"b": "2"}})
        report.note("patch", patched.data)
        await core.delete_namespaced_config_map("asyncio", NAMESPACE)
        await following
        await watching.close()
        report.note("watch", events)

        custom = client.CustomObjectsApi(api)
        place = (GROUP, "v1", NAMESPACE, "widgets")
        await custom.patch_namespaced_custom_object(  # this client cannot handle the answer 201
            *place, "asyncio", widget("asyncio", 3), field_manager="one", _content_type="application/apply-patch+yaml"
        )
        applied = await custom.get_namespaced_custom_object(*place, "asyncio")
        report.note("apply", [applied["spec"], owners(applied["metadata"]["managedFields"])])
        try:
            await custom.patch_namespaced_custom_object(
                *place, "asyncio", widget("asyncio", 4), field_manager="two",
                _content_type="application/apply-patch+yaml",
            )  # fmt: skip
        except ApiException as error:
            report.note("conflict", [error.status, error.reason])
        report.note(
            "list", [item["metadata"]["name"] for item in (await custom.list_namespaced_custom_object(*place))["items"]]
        )
        report.note("delete", (await custom.delete_namespaced_custom_object(*place, "asyncio"))["status"])
    report.print()


asyncio.run(main())
