"""A request with its files, before it is decided which of them go inside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from jev._attachments import MAX_INLINE, LoadedFile, UploadedFile, listed, load_all
from jev._body import DEFAULT_MODEL, DecideOptions, Questions, State, build_body
from jev.errors import InvalidRequestError
from jev.schemas import ATTACHMENT_FIELDS, MAX_ATTACHMENTS


@dataclass(frozen=True)
class Draft:
    """The arguments of one `decide`, checked and read.

    Attributes:
        body: the request's body without `files`.
        files: its attachments, in order.
    """

    body: dict[str, Any]
    files: tuple[LoadedFile | UploadedFile, ...] = ()

    @classmethod
    def of(
        cls,
        state: State,
        questions: Questions | type[Any],
        options: DecideOptions,
        *,
        model: str = DEFAULT_MODEL,
    ) -> Self:
        """Check the arguments and read the attachments.

        Raises:
            TypeError: for an unknown option, or questions or attachments of the wrong kind.
            OSError: for a file that cannot be read.
            InvalidRequestError: for too many attachments, a name that is not one, or a value that
                JSON does not have.
        """
        body = build_body(state, questions, options, model=model)
        given = listed(options.get("attachments"))
        _check_count(body, len(given))
        return cls(body, load_all(given))

    @property
    def too_large(self) -> tuple[LoadedFile, ...]:
        """The files to upload first: all that are not yet, if together they are large, else none."""
        loaded = tuple(file for file in self.files if isinstance(file, LoadedFile))
        return loaded if sum(file.size for file in loaded) > MAX_INLINE else ()

    def complete(self, uploaded: Sequence[UploadedFile] = ()) -> dict[str, Any]:
        """The whole body.

        Args:
            uploaded: what the server made of `too_large`, in its order; without them all files go inside.
        """
        if not self.files:
            return self.body
        held = iter(uploaded)
        entries: list[dict[str, str]] = []
        for file in self.files:
            one = next(held, file) if isinstance(file, LoadedFile) else file
            if isinstance(one, LoadedFile):
                entries.append(one.inline())
            else:
                entries.append({"name": one.name, "file": one.id})
        # The body may have files of its own, from `extra_body`; they come first.
        return {**self.body, "files": [*(self.body.get("files") or ()), *entries]}


def _check_count(body: dict[str, Any], attachments: int) -> None:
    """Refuse too many attachments with the words of the server, before any is read."""
    if not attachments:
        return
    if not isinstance(body.get("files"), (list, type(None))):
        raise InvalidRequestError.at("files", msg="Input should be a valid list", type="list_type")
    fields = [field for field in ATTACHMENT_FIELDS if field != "images"]
    count = attachments + sum(len(body[field]) for field in fields if isinstance(body.get(field), list))
    if count > MAX_ATTACHMENTS:
        # The last field is where the server finds that there are too many.
        names = f"{', '.join(fields[:-1])} and {fields[-1]}"
        msg = f"{count} attachments in {names}; the limit is {MAX_ATTACHMENTS}"
        raise InvalidRequestError.at(fields[-1], msg=msg)
