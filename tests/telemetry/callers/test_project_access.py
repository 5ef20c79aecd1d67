"""Who may read logs: identity and project by mode, and reviews by the project's plane."""

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from datum_compute.kube.authority import CLIENT, issue, new_authority
from datum_compute.kube.client import Client
from datum_compute.kube.errors import ApiError, Forbidden, NotFound, Unauthorized, Unavailable
from datum_compute.kube.meta import Json
from datum_compute.kube.reviews import ACCESS_REVIEW
from datum_compute.kube.transport import Answer, Call
from datum_compute.runtime.testing.simulation import Simulation
from datum_compute.telemetry.callers import project_access as module
from datum_compute.telemetry.callers.front_proxy import FrontProxy
from datum_compute.telemetry.callers.identity import Address, Rules, addressed
from datum_compute.telemetry.callers.project_access import REMEMBERED_SECONDS, ProjectAccess
from datum_compute.telemetry.sources import Reader

MILO = Rules(passed_on=True, by_path=True)
SINGLE = Rules(passed_on=True, by_path=False, only="single")
KUBECONFIGS = Rules(passed_on=False, by_path=True)

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
AUTHORITY = new_authority("front-proxy-ca", BEGAN, 36500)
OTHER = new_authority("front-proxy-ca", BEGAN, 36500)
FRONT_PROXY = FrontProxy(AUTHORITY.certificate_pem.decode(), ("front-proxy-client",))
PROXY_CERTIFICATE = issue(AUTHORITY, "front-proxy-client", BEGAN, 36500, purposes=[CLIENT]).certificate_pem.decode()
OTHER_CERTIFICATE = issue(OTHER, "front-proxy-client", BEGAN, 36500, purposes=[CLIENT]).certificate_pem.decode()

PARENT_NAME, PARENT_TYPE = "iam.miloapis.com/parent-name", "iam.miloapis.com/parent-type"


class Plane:
    """The plane of a project: whose tokens it knows, and in which namespaces each of them may read."""

    def __init__(self, users: dict[str, Json], rights: dict[str, set[str]]) -> None:
        self.users = users  # by token
        self.rights = rights  # by user name
        self.reviews: list[Json] = []
        self.away = False
        self.refusing = False
        self.seconds = 0.0  # that an answer takes
        self.most = 0  # calls at once
        self._calls = 0

    async def call(self, call: Call) -> Answer:
        self._calls += 1
        self.most = max(self.most, self._calls)
        try:
            await asyncio.sleep(self.seconds)
            return self._reviewed(call)
        finally:
            self._calls -= 1

    def _reviewed(self, call: Call) -> Answer:
        if self.away:
            raise Unavailable("cannot be reached")
        if self.refusing:
            return Answer(403, msgspec.json.encode({"message": "you may not", "reason": "Forbidden", "code": 403}))
        spec = msgspec.json.decode(call.body)["spec"]
        self.reviews.append(spec)
        if call.path == ACCESS_REVIEW.path():
            attributes = spec["resourceAttributes"]
            subject = (attributes["group"], attributes["resource"], attributes["verb"], attributes["subresource"])
            reading = subject == ("compute.datumapis.com", "instances", "get", "log")
            running = subject == ("compute.datumapis.com", "instances", "create", "exec")
            rights = self.rights.get(spec["user"], set())
            wanted = attributes["namespace"] if reading else f"exec {attributes['namespace']}/{attributes.get('name')}"
            return _answer({"allowed": (reading or running) and wanted in rights})
        user = self.users.get(spec["token"])
        return _answer({"authenticated": user is not None, **({"user": user} if user else {})})

    def stream(self, call: Call) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        raise AssertionError("reviews are not watched")

    def specs_with(self, key: str) -> list[Json]:
        return [spec for spec in self.reviews if key in spec]


def _answer(status: Json) -> Answer:
    return Answer(201, msgspec.json.encode({"metadata": {}, "status": status}))


class Projects:
    def __init__(self, **planes: Plane) -> None:
        self.planes = planes
        self.with_instances = {name: ["default", "team"] for name in planes}

    def client(self, name: str) -> Client:
        return Client(name, self.planes[name])

    def namespaces(self, name: str) -> Collection[str]:
        return self.with_instances[name]


def token(name: str) -> list[tuple[bytes, bytes]]:
    return [(b"authorization", f"Bearer {name}".encode())]


def remote(user: str, **extra: str) -> list[tuple[bytes, bytes]]:
    names = {"name": PARENT_NAME, "type": PARENT_TYPE}
    named = [(f"x-remote-extra-{names[key]}".replace("/", "%2f"), value) for key, value in extra.items()]
    return [(b"x-remote-user", user.encode()), *((key.encode(), value.encode()) for key, value in named)]


def request(
    path: str, headers: Iterable[tuple[bytes, bytes]] = (), certificate: str = ""
) -> tuple[str, dict[str, Any]]:
    scope: dict[str, Any] = {"type": "http", "path": path, "headers": list(headers)}
    if certificate:
        scope["extensions"] = {"tls": {"client_cert_chain": [certificate]}}
    return path, scope


DEMO, SHOP = "/projects/demo/control-plane/apis/x", "/projects/shop/control-plane/apis/x"
PASSED_ON = "/apis/o11y.miloapis.com/v1alpha1/logs/loki/api/v1/query_range"


@pytest.fixture
def demo() -> Plane:
    ada = {"username": "ada", "uid": "7", "groups": ["dev"], "extra": {"scopes": ["x"]}}
    return Plane({"of-ada": ada}, {"ada": {"default", "team"}, "bob": {"team"}})


@pytest.fixture
def shop() -> Plane:
    return Plane({"of-eve": {"username": "eve"}}, {"eve": {"default"}})


class Door:
    """Access as the server asks for it."""

    def __init__(self, rules: Rules, simulation: Simulation, **planes: Plane) -> None:
        self.projects = Projects(**planes)
        self.rules = rules
        self.access = ProjectAccess(rules, self.projects, simulation, lambda: FRONT_PROXY)

    async def reader(self, path: str, scope: dict[str, Any]) -> Reader:
        return await self.access(addressed(path, self.rules).project, scope)

    async def refusal(self, path: str, scope: dict[str, Any]) -> type[ApiError]:
        with pytest.raises(ApiError) as refused:
            await self.reader(path, scope)
        return refused.type


@pytest.mark.parametrize(
    ("path", "rules", "expected"),
    [
        ("/apis/x", MILO, Address("", "/apis/x")),
        (DEMO, MILO, Address("demo", "/apis/x")),
        (DEMO, KUBECONFIGS, Address("demo", "/apis/x")),
        ("/projects/demo/control-plane/", KUBECONFIGS, Address("demo", "/")),
    ],
)
def test_a_path_names_a_project(path: str, rules: Rules, expected: Address) -> None:
    assert addressed(path, rules) == expected


@pytest.mark.parametrize(
    ("path", "rules"),
    [
        (DEMO, SINGLE),
        ("/projects/@hub/control-plane/apis/x", MILO),
        ("/projects/a/b/control-plane/apis/x", MILO),
        ("/projects//control-plane/apis/x", MILO),
        ("/projects/demo/apis/x", MILO),
        ("/projects/demo\n/control-plane/x", MILO),
    ],
)
def test_other_paths_name_none(path: str, rules: Rules) -> None:
    with pytest.raises(NotFound):
        addressed(path, rules)


@pytest.mark.parametrize("rules", [MILO, KUBECONFIGS])
async def test_a_token_is_reviewed_by_the_project_of_the_path(
    simulation: Simulation, rules: Rules, demo: Plane, shop: Plane
) -> None:
    door = Door(rules, simulation, demo=demo, shop=shop)
    assert await door.reader(*request(DEMO, token("of-ada"))) == Reader("demo", frozenset({"default", "team"}))
    assert await door.refusal(*request(SHOP, token("of-ada"))) is Unauthorized, "another project's user"
    assert await door.refusal(*request(DEMO)) is Unauthorized
    assert await door.refusal(*request(PASSED_ON, token("of-ada"))) is Unauthorized, "for no project"
    unknown = "/projects/other/control-plane/apis/x"
    assert await door.refusal(*request(unknown, token("of-ada"))) is Unauthorized, "nobody learns which there are"


async def test_a_review_carries_everything_known_about_the_caller(simulation: Simulation, demo: Plane) -> None:
    await Door(MILO, simulation, demo=demo).reader(*request(DEMO, token("of-ada")))
    [first, *_] = demo.specs_with("resourceAttributes")
    assert {key: value for key, value in first.items() if key != "resourceAttributes"} == {
        "user": "ada",
        "uid": "7",
        "groups": ["dev"],
        "extra": {
            "scopes": ["x"],
            PARENT_NAME: ["demo"],
            PARENT_TYPE: ["Project"],
            "iam.miloapis.com/parent-api-group": ["resourcemanager.miloapis.com"],
        },
    }


async def test_a_token_for_another_project_is_refused(simulation: Simulation, demo: Plane) -> None:
    demo.users["of-shop"] = {"username": "ada", "extra": {PARENT_NAME: ["shop"]}}
    demo.users["of-both"] = {"username": "ada", "extra": {PARENT_NAME: ["demo", "shop"]}}
    demo.users["of-demo"] = {"username": "ada", "extra": {PARENT_NAME: ["demo"]}}
    door = Door(MILO, simulation, demo=demo)
    assert await door.refusal(*request(DEMO, token("of-shop"))) is Forbidden
    assert await door.refusal(*request(DEMO, token("of-both"))) is Forbidden
    assert (await door.reader(*request(DEMO, token("of-demo")))).project == "demo"


async def test_the_front_proxy_of_the_root_names_caller_and_project(simulation: Simulation, demo: Plane) -> None:
    door = Door(MILO, simulation, demo=demo)
    headers = remote("bob", name="demo", type="Project")
    assert await door.reader(*request(PASSED_ON, headers, PROXY_CERTIFICATE)) == Reader("demo", frozenset({"team"}))
    assert demo.specs_with("token") == [], "the API server has reviewed it"


@pytest.mark.parametrize("rules", [MILO, SINGLE, KUBECONFIGS])
@pytest.mark.parametrize("certificate", ["", OTHER_CERTIFICATE])
async def test_forged_headers_are_not_believed(
    simulation: Simulation, demo: Plane, rules: Rules, certificate: str
) -> None:
    """Without a certificate, and with one that another plane's front proxy has."""
    door = Door(rules, simulation, demo=demo, single=demo)
    headers = remote("ada", name="demo", type="Project")
    assert await door.refusal(*request(PASSED_ON, headers, certificate)) is Unauthorized
    assert demo.reviews == []
    if rules.by_path:
        assert await door.refusal(*request(DEMO, headers, certificate)) is Unauthorized


async def test_forged_headers_beside_a_token_change_nothing(simulation: Simulation, demo: Plane) -> None:
    demo.users["of-bob"] = {"username": "bob"}
    door = Door(MILO, simulation, demo=demo)
    headers = [*remote("ada", name="demo", type="Project"), *token("of-bob")]
    assert await door.reader(*request(DEMO, headers)) == Reader("demo", frozenset({"team"}))


async def test_in_mode_kubeconfigs_no_front_proxy_is_believed(simulation: Simulation, demo: Plane) -> None:
    door = Door(KUBECONFIGS, simulation, demo=demo)
    headers = remote("ada", name="demo", type="Project")
    assert await door.refusal(*request(PASSED_ON, headers, PROXY_CERTIFICATE)) is Unauthorized


async def test_a_path_names_a_project_for_tokens_only(simulation: Simulation, demo: Plane, shop: Plane) -> None:
    """A caller that the front proxy names in one project must not choose another by the path."""
    door = Door(MILO, simulation, demo=demo, shop=shop)
    headers = remote("eve", name="demo", type="Project")
    assert await door.refusal(*request(SHOP, headers, PROXY_CERTIFICATE)) is Unauthorized


@pytest.mark.parametrize(
    "extra",
    [
        {"name": "demo", "type": "Organization"},
        {"name": "demo"},
        {"type": "Project"},
        {"name": "", "type": "Project"},
        {},
    ],
)
async def test_a_request_for_no_project_is_refused(simulation: Simulation, demo: Plane, extra: dict[str, str]) -> None:
    door = Door(MILO, simulation, demo=demo)
    assert await door.refusal(*request(PASSED_ON, remote("ada", **extra), PROXY_CERTIFICATE)) is Forbidden
    assert demo.reviews == []


async def test_in_mode_single_the_cluster_is_the_project(simulation: Simulation, demo: Plane) -> None:
    door = Door(SINGLE, simulation, single=demo)
    by_proxy = request(PASSED_ON, remote("bob", name="other", type="Project"), PROXY_CERTIFICATE)
    assert await door.reader(*by_proxy) == Reader("single", frozenset({"team"}))
    assert (await door.reader(*request(PASSED_ON, token("of-ada")))).project == "single"
    assert PARENT_NAME not in demo.specs_with("resourceAttributes")[-1]["extra"]


async def test_namespaces_that_are_refused_are_left_out(simulation: Simulation, demo: Plane) -> None:
    door = Door(KUBECONFIGS, simulation, demo=demo)
    demo.users["of-bob"] = {"username": "bob"}
    demo.users["of-eve"] = {"username": "eve"}
    assert (await door.reader(*request(DEMO, token("of-bob")))).namespaces == frozenset({"team"})
    with pytest.raises(Forbidden, match='"eve" may not read logs in project demo'):
        await door.reader(*request(DEMO, token("of-eve")))


async def test_what_cannot_be_asked_is_not_allowed(simulation: Simulation, demo: Plane) -> None:
    door = Door(KUBECONFIGS, simulation, demo=demo)
    demo.away = True
    assert await door.refusal(*request(DEMO, token("of-ada"))) is Unavailable
    demo.away = False
    await door.reader(*request(DEMO, token("of-ada")))
    demo.refusing = True
    assert (await door.reader(*request(DEMO, token("of-ada")))).project == "demo", "remembered"
    await asyncio.sleep(REMEMBERED_SECONDS)
    assert await door.refusal(*request(DEMO, token("of-ada"))) is Unavailable, "our own right is missing"


async def test_answers_are_remembered_for_ten_seconds_by_project_and_caller(
    simulation: Simulation, demo: Plane
) -> None:
    door = Door(KUBECONFIGS, simulation, demo=demo)
    await door.reader(*request(DEMO, token("of-ada")))
    demo.rights["ada"] = set()
    reviews = len(demo.reviews)
    await asyncio.sleep(REMEMBERED_SECONDS - 1)
    await door.reader(*request(DEMO, token("of-ada")))
    assert len(demo.reviews) == reviews
    await asyncio.sleep(1)
    assert await door.refusal(*request(DEMO, token("of-ada"))) is Forbidden, "the right was withdrawn"


async def test_a_refused_token_is_reviewed_once_in_ten_seconds(simulation: Simulation, demo: Plane) -> None:
    door = Door(KUBECONFIGS, simulation, demo=demo)
    for _ in range(5):
        assert await door.refusal(*request(DEMO, token("guess"))) is Unauthorized
    assert len(demo.specs_with("token")) == 1
    demo.users["guess"] = {"username": "ada"}
    await asyncio.sleep(REMEMBERED_SECONDS)
    assert (await door.reader(*request(DEMO, token("guess")))).project == "demo"


async def test_guesses_displace_no_caller(simulation: Simulation, demo: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_REMEMBERED", 4)
    door = Door(KUBECONFIGS, simulation, demo=demo)
    await door.reader(*request(DEMO, token("of-ada")))
    for number in range(10):
        assert await door.refusal(*request(DEMO, token(f"guess-{number}"))) is Unauthorized
    await door.reader(*request(DEMO, token("of-ada")))
    assert len([spec for spec in demo.specs_with("token") if spec["token"] == "of-ada"]) == 1


async def test_only_a_few_tokens_are_reviewed_at_once(simulation: Simulation, demo: Plane, shop: Plane) -> None:
    """A project that is slow to answer meets no flood, and holds up no other."""
    demo.seconds = 1.0
    door = Door(KUBECONFIGS, simulation, demo=demo, shop=shop)
    guesses = [door.refusal(*request(DEMO, token(f"guess-{number}"))) for number in range(30)]
    refusals = asyncio.gather(*guesses)
    await simulation.settle()
    began = simulation.time()
    await door.reader(*request(SHOP, token("of-eve")))
    assert simulation.time() == began
    assert set(await refusals) == {Unauthorized}
    assert demo.most == 8
    demo.reviews.clear()
    await asyncio.gather(*(door.refusal(*request(DEMO, token("the same"))) for _ in range(100)))
    assert len(demo.specs_with("token")) <= 8, "those who wait learn what was answered meanwhile"


async def test_a_callers_answers_are_never_anothers(simulation: Simulation, demo: Plane) -> None:
    """The same name with other groups, or on another plane, is another caller."""
    door = Door(MILO, simulation, demo=demo)
    await door.reader(*request(DEMO, token("of-ada")))
    reviews = len(demo.specs_with("resourceAttributes"))
    headers = remote("ada", name="demo", type="Project")
    await door.reader(*request(PASSED_ON, headers, PROXY_CERTIFICATE))
    assert len(demo.specs_with("resourceAttributes")) == 2 * reviews


async def test_a_source_with_lines_of_former_namespaces_asks_for_all_of_them(
    simulation: Simulation, demo: Plane
) -> None:
    demo.rights["ada"] = {"", "default"}
    demo.users["of-bob"] = {"username": "bob"}
    access = ProjectAccess(KUBECONFIGS, Projects(demo=demo), simulation, everywhere=True)
    assert await access("demo", request(DEMO, token("of-ada"))[1]) == Reader("demo")
    assert await access("demo", request(DEMO, token("of-bob"))[1]) == Reader("demo", frozenset({"team"}))


async def test_running_a_command_is_a_right_of_its_own(simulation: Simulation, demo: Plane) -> None:
    demo.rights["ada"].add("exec default/web-0")
    door = Door(KUBECONFIGS, simulation, demo=demo)
    project, caller = await door.access.identify("demo", request(DEMO, token("of-ada"))[1])
    assert await door.access.may_run(project, caller, "default", "web-0")
    assert not await door.access.may_run(project, caller, "default", "web-1")
    assert not await door.access.may_run(project, caller, "team", "web-0")


@pytest.mark.parametrize(
    "headers",
    [
        [(b"authorization", b"Basic abc")],
        [(b"authorization", b"Bearer ")],
        [(b"authorization", b"Bearer " + b"x" * 40_000)],
        [*token("of-ada"), *token("of-ada")],
    ],
)
async def test_a_request_needs_one_bearer_token(
    simulation: Simulation, demo: Plane, headers: list[tuple[bytes, bytes]]
) -> None:
    door = Door(KUBECONFIGS, simulation, demo=demo)
    assert await door.refusal(*request(DEMO, headers)) is Unauthorized
    assert demo.reviews == []
