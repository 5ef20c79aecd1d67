"""The format of SSH public keys. Entry point: `is_public_key`."""

from base64 import b64decode

# Number of parts that follow the type in the body of a key (RFC 4253 6.6, RFC 5656, RFC 8709, OpenSSH's PROTOCOL.u2f).
_PARTS = {
    "ssh-ed25519": 1,
    "ssh-rsa": 2,
    "ssh-dss": 4,
    "ecdsa-sha2-nistp256": 2,
    "ecdsa-sha2-nistp384": 2,
    "ecdsa-sha2-nistp521": 2,
    "sk-ssh-ed25519@openssh.com": 2,
    "sk-ecdsa-sha2-nistp256@openssh.com": 3,
}


def is_public_key(text: str) -> bool:
    """Whether the text is `<type> <body> [comment]`, with a body of that type. The numbers in it are not checked."""
    kind, body, *_ = [*text.split(maxsplit=2), "", ""]
    if kind not in _PARTS:
        return False
    try:
        parts = _parts(b64decode(body, validate=True))
    except ValueError:  # binascii.Error is one
        return False
    return len(parts) == 1 + _PARTS[kind] and parts[0] == kind.encode() and all(parts)


def _parts(body: bytes) -> list[bytes]:
    """The strings in the body of a key, each preceded by its length in four bytes."""
    parts: list[bytes] = []
    while body:
        length = int.from_bytes(body[:4])
        if len(body) < 4 + length or len(parts) > max(_PARTS.values()):
            raise ValueError("the body ends within a part, or has too many")
        parts.append(body[4 : 4 + length])
        body = body[4 + length :]
    return parts
