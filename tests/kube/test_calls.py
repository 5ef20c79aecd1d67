"""Lists in pages, whoever sends the calls."""

import msgspec
from msgspec import Raw

from datum_compute.kube.calls import Pages
from datum_compute.kube.kinds import CONFIG_MAP, only_metadata


def page(*names: str, token: str = "", version: str = "9") -> bytes:
    metadata = {"resourceVersion": version, "continue": token}
    return msgspec.json.encode({"metadata": metadata, "items": [CONFIG_MAP.body(name) for name in names]})


def pages() -> Pages[str]:
    return Pages(CONFIG_MAP, name_of, "default", "app=web", limit=2)


def name_of(item: Raw) -> str:
    return CONFIG_MAP.decode(item).name


def test_pages_follow_each_other_until_one_has_no_token() -> None:
    listing = pages()
    queries = []
    for answer in (page("a", "b", token="t1"), page("c")):
        assert listing.next_call is not None
        queries.append(listing.next_call.query)
        listing.add(answer)
    first = {"limit": "2", "labelSelector": "app=web"}
    assert queries == [first, first | {"continue": "t1"}]
    assert listing.next_call is None
    assert (listing.items, listing.resource_version) == (["a", "b", "c"], "9")


def test_a_list_that_expires_is_requested_again_without_pages() -> None:
    listing = pages()
    listing.add(page("a", "b", token="t1"))
    assert listing.restart()
    assert listing.next_call is not None
    assert listing.next_call.query == {"labelSelector": "app=web"}
    listing.add(page("a", "b", "c", version="12"))
    assert (listing.items, listing.resource_version) == (["a", "b", "c"], "12")


def test_an_expired_first_page_is_not_requested_again() -> None:
    assert not pages().restart()


def test_metadata_only_lists_are_requested_as_such() -> None:
    listing = Pages(only_metadata(CONFIG_MAP), name_of)
    assert listing.next_call is not None
    assert "PartialObjectMetadataList" in listing.next_call.accept
