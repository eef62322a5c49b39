"""A request with its files, before it is decided which of them go inside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self, cast

from jev._attachments import MAX_INLINE, LoadedFile, listed, load_all
from jev._body import DEFAULT_MODEL, DecideOptions, Questions, State, build_body
from jev.errors import InvalidRequestError
from jev.schemas import ATTACHMENT_FIELDS, MAX_ATTACHMENTS, UploadedFile
from jev.schemas.request import too_many


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

    @contextmanager
    def naming(self, file: LoadedFile) -> Iterator[None]:
        """Name a file whose upload is refused as a request with all files inside would."""
        try:
            yield
        except InvalidRequestError as error:
            if not error.issues:
                raise
            own = len(self.body.get("files") or ())
            number = own + next(index for index, one in enumerate(self.files) if one is file)
            moved = [
                issue.model_copy(update={"loc": [*issue.loc[:2], number, *issue.loc[3:]]})
                if issue.loc[1:3] == ["files", 0]
                else issue
                for issue in error.issues
            ]
            renamed = InvalidRequestError.of(moved)
            renamed.request_id = error.request_id
            raise renamed from None

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
    count = attachments
    for field in ATTACHMENT_FIELDS:
        if field == "images":
            continue
        given = body.get(field)
        count += len(cast("list[Any]", given)) if isinstance(given, list) else 0
        if count > MAX_ATTACHMENTS:
            raise InvalidRequestError.at(field, msg=too_many(count))
