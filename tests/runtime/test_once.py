from datum_compute.runtime.once import Once


def test_a_message_is_not_repeated_until_it_is_forgotten() -> None:
    once: Once[str] = Once()
    assert [once.first(key) for key in ("a", "b", "a")] == [True, True, False]
    once.forget(lambda key: key == "a")
    assert [once.first(key) for key in ("a", "b")] == [True, False]


def test_memory_is_bounded_and_keeps_frequent_entries() -> None:
    once: Once[int] = Once(at_most=3)
    for number in range(100):
        once.first(-1)
        once.first(number)
    assert len(once) == 3
    assert not once.first(-1)
