"""Bodies in protobuf as client-go encodes them. Entry points: `envelope`, `field`."""


def field(number: int, value: bytes | str | int) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def varint(value: int) -> bytes:
    out = b""
    while value >= 0x80:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def envelope(kind: str, raw: bytes, version: str = "v1") -> bytes:
    return b"k8s\x00" + field(1, field(1, version) + field(2, kind)) + field(2, raw) + field(3, "") + field(4, "")
