"""The paths of planes over HTTPS. Entry point: `Mount`."""

from msgspec import Struct


class Mount(Struct, frozen=True):
    """Puts the API roots of the planes of a role at `prefix/<name>/suffix`. Users call such a plane a `noun`."""

    role: str
    noun: str
    prefix: str
    suffix: str

    def path(self, plane: str) -> str:
        return f"{self.prefix}/{plane}/{self.suffix}"

    def split(self, path: str) -> tuple[str, str] | None:
        """The plane that a path names, and the path below its API root; None for a path outside the mount."""
        if not path.startswith(f"{self.prefix}/"):
            return None
        match path.removeprefix(f"{self.prefix}/").split("/"):
            case [name, self.suffix, *rest]:
                return name, f"/{'/'.join(rest)}"
        return None
