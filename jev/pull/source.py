"""What a deployment takes from a model hub, as its settings file says it under `[pull]`."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, field_validator

_PART = re.compile(r"[A-Za-z0-9][\w.-]*")


def is_commit(revision: str) -> bool:
    """Whether a revision is a commit in full, which never moves."""
    return len(revision) == 40 and set(revision) <= set("0123456789abcdef")


class PinnedFile(BaseModel):
    """A file of a repository; what is pinned must be true of what is fetched.

    Attributes:
        sha256: digest in hex; None = the one that the hub states.
        size: in bytes; None = as the hub states.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = None
    size: Annotated[int, Field(ge=0)] | None = None


class Source(BaseModel):
    """Files of one revision of a repository.

    Attributes:
        repo: OWNER/NAME.
        revision: a commit in full, or a branch or tag, which may move.
        files: by their path in the repository; a plain list pins nothing.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    repo: str
    revision: str = "main"
    files: dict[str, PinnedFile] = Field(min_length=1)

    _config: str | None = PrivateAttr(default=None)

    @property
    def config(self) -> str | None:
        """The settings file that this stands in, where it does."""
        return self._config

    def stands_in(self, config: str) -> None:
        """Remember the settings file."""
        self._config = config

    @field_validator("repo")
    @classmethod
    def _owner_and_name(cls, repo: str) -> str:
        if len(repo) > 96 or len(parts := repo.split("/")) != 2 or not all(map(_PART.fullmatch, parts)):
            raise ValueError("a repository is OWNER/NAME")
        return repo

    @field_validator("revision")
    @classmethod
    def _plain_revision(cls, revision: str) -> str:
        if not all(map(_PART.fullmatch, revision.split("/"))) or ".." in revision:
            raise ValueError("a revision is a commit, a branch or a tag")
        return revision

    @field_validator("files", mode="before")
    @classmethod
    def _plain_list(cls, files: Any) -> Any:
        return {name: {} for name in files} if isinstance(files, (list, tuple)) else files

    @field_validator("files")
    @classmethod
    def _inside(cls, files: dict[str, PinnedFile]) -> dict[str, PinnedFile]:
        for name in files:
            path = PurePosixPath(name)
            odd = "\\" in name or ":" in name or not name.isprintable()
            if odd or path.is_absolute() or str(path) != name or ".." in path.parts:
                raise ValueError(f"{name[:200]!r} is not the path of a file in a repository")
        return files
