"""Two deploys of one workload at the same time: both count, and the history loses nothing."""

import json
import threading
from collections.abc import Sequence

from datum_compute.api.workload import WORKLOAD
from datum_compute.cli.workload.history import CURRENT, name_of
from datum_compute.cli.workload.revisions import spec_hash
from datum_compute.kube.kinds import CONFIG_MAP
from datum_compute.kube.meta import as_dict
from tests.cli.conftest import Compute
from tests.cli.server import ApiServer

ROUNDS = 8


def at_once(compute: Compute, *commands: Sequence[str]) -> list[int]:
    """The exit codes of commands that all begin together."""
    codes = [-1] * len(commands)
    start = threading.Barrier(len(commands))

    def run(index: int) -> None:
        start.wait()
        codes[index] = compute(*commands[index]).code

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(commands))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return codes


def test_both_edits_and_both_entries_are_kept(api: ApiServer, compute: Compute) -> None:
    compute("deploy", "shop", "--image=shop:0", "--city=DFW", "--no-wait")
    for number in range(1, ROUNDS + 1):
        codes = at_once(
            compute,
            ("deploy", "shop", f"--image=shop:{number}", "--no-wait"),
            ("deploy", "shop", f"--env=ROUND={number}", "--no-wait"),
        )
        assert codes == [0, 0]
        container = as_dict(api.get(WORKLOAD, "shop").spec_json)["template"]["spec"]["runtime"]["sandbox"][
            "containers"
        ][0]
        assert (container["image"], container["env"]) == (
            f"shop:{number}", [{"name": "ROUND", "value": str(number)}],
        )  # fmt: skip
    stored = api.get(CONFIG_MAP, name_of("shop"))
    entries = [json.loads(text) for _, text in sorted(stored.data.items(), key=lambda item: int(item[0]))]
    assert [entry["rev"] for entry in entries] == list(range(1, 2 * ROUNDS + 2))
    assert {entry["kind"] for entry in entries} == {"deploy"}
    changes = [entry["changes"] for entry in entries]
    for number in range(1, ROUNDS + 1):
        assert f"image: shop:{number - 1} → shop:{number}" in changes
    assert changes.count("env ROUND: set") + changes.count("env ROUND: changed") == ROUNDS
    active = next(entry for entry in entries if str(entry["rev"]) == stored.metadata.annotations[CURRENT])
    assert active["specHash"] == spec_hash(as_dict(api.get(WORKLOAD, "shop").spec_json))


def test_concurrent_unpacking_happens_once(api: ApiServer, compute: Compute) -> None:
    new = ("deploy", "shop", "--image=shop:0", "--city=DFW", "--no-wait")
    codes = at_once(compute, new, new)
    assert sorted(codes) in ([0, 0], [0, 4])  # the second found it there, or was told that somebody was faster
    assert list(api.get(CONFIG_MAP, name_of("shop")).data) == ["1"]


def test_twenty_five_deploys_leave_the_last_twenty(api: ApiServer, compute: Compute) -> None:
    compute("deploy", "shop", "--image=shop:1", "--city=DFW", "--no-wait")
    for number in range(2, 26):
        compute("deploy", "shop", f"--image=shop:{number}", "--no-wait")
    assert sorted(map(int, api.get(CONFIG_MAP, name_of("shop")).data)) == list(range(6, 26))
