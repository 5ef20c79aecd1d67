"""Where planes of a role are reached over HTTPS. Entry point: `Mount`."""

from msgspec import Struct


class Mount(Struct, frozen=True):
    """The API root of a plane is at `prefix/<name>/suffix`. `noun` is what its users call such a plane."""

    role: str
    noun: str
    prefix: str
    suffix: str

    def path(self, plane: str) -> str:
        return f"{self.prefix}/{plane}/{self.suffix}"

    def split(self, path: str) -> tuple[str, str] | None:
        """The plane that a path names and the path below its API root; None for a path that is elsewhere."""
        if not path.startswith(f"{self.prefix}/"):
            return None
        match path.removeprefix(f"{self.prefix}/").split("/"):
            case [name, self.suffix, *rest]:
                return name, f"/{'/'.join(rest)}"
        return None
