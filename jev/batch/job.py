"""What a job is: its definition from a TOML file or flags, checked, and what makes it the same job again."""

from __future__ import annotations

import hashlib
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from jev.batch.deciders import GROUP_ROWS
from jev.batch.inputs import STDIN, Columns
from jev.batch.outcome import dumps
from jev.batch.readers import JobError
from jev.schemas import BadRequestError, SystemOneRequest, issues_of, parse_json, parse_request

FORMATS = (".jsonl", ".parquet")

Name = Annotated[str, Field(min_length=1)]  # checked, hence text that UTF-8 has


class Options(BaseModel):
    """Options of the requests; see `SystemOneRequest`. What is not set is not sent."""

    model_config = ConfigDict(extra="forbid")

    model: str | None = None
    instructions: str | dict[str, Any] | list[Any] | None = None
    layout: Literal["isolated", "joint"] | None = None
    samples: int | Literal["auto"] | None = None
    auto_max: int | None = None
    auto_threshold: float | None = None
    seed: int | None = None
    permutations: int | None = None
    chunk_rows: int | None = None
    chunk_prompt: Literal["own", "shared"] | None = None
    calibration: str | None = None


class Job(BaseModel):
    """A job, as in a TOML file. Paths in a file are relative to its folder.

    Attributes:
        input: rows: a .jsonl, .csv, .tsv or .parquet file (the text ones also .gz), a folder, or "-".
        output: a .jsonl or .parquet file.
        questions: questions by id, or the path of a JSON file with them; None if each row has its own.
        state_columns: see `Columns`.
        id_column: see `Columns`.
        attachment_columns: see `Columns`.
        attachments_root: folder that paths of attachments are relative to; None = the input's.
        options: of the requests.
        backend: who decides, as `jev.backends.open_backend` takes it.
        ordered: whether the output has the order of the input.
        keep_input: whether the output has the input's columns too.
        dedup: whether rows that ask the same are asked once.
        concurrency: rows at once with a remote backend; None = what it makes use of.
        retries: how often a row is asked again when a remote backend says "not now".
        group_rows: rows that the model in this process decides together.
        review_below: rows with a less certain answer are also written to `review`.
        review: where to; None = beside the output.
    """

    model_config = ConfigDict(extra="forbid")

    input: str = Field(min_length=1)
    output: Path
    questions: dict[str, Any] | str | None = None
    state_columns: tuple[Name, ...] = ()
    id_column: Name | None = None
    attachment_columns: tuple[Name, ...] = ()
    attachments_root: Path | None = None
    options: Options = Options()
    backend: str = "torch"
    ordered: bool = True
    keep_input: bool = False
    dedup: bool = True
    concurrency: int | None = Field(default=None, ge=1, le=1024)
    retries: int = Field(default=8, ge=0, le=1000)
    group_rows: int = Field(default=GROUP_ROWS, ge=1, le=1024)
    review_below: float | None = Field(default=None, gt=0, le=1)
    review: Path | None = None

    @classmethod
    def load(cls, file: Path | None = None, **given: Any) -> Self:
        """Read a job: what is given wins over what the file says; None counts as not given.

        Raises:
            JobError: one sentence that names the file or field and what is wrong.
        """
        fields = _read_toml(file) if file is not None else {}
        options = {**fields.pop("options", {}), **given.pop("options", {})}
        fields |= {name: value for name, value in given.items() if value is not None}
        try:
            job = cls(**fields, options=Options(**{k: v for k, v in options.items() if v is not None}))
        except ValidationError as error:
            issue = issues_of(error, prefix=())[0]
            name = ".".join(map(str, issue.loc))
            where = f"{file}: " if file is not None else ""
            raise JobError(f"{where}{name or 'job'}: {issue.msg}") from None
        job.check()
        return job

    def check(self) -> None:
        """Refuse what cannot work, before anything is loaded.

        Raises:
            JobError: naming the field.
        """
        if self.output.suffix not in FORMATS:
            raise JobError(f"output {self.output}: the name must end in {' or '.join(FORMATS)}")
        self._check_written("output", self.output)
        if self.attachments_root is not None and not self.attachments_root.is_dir():
            raise JobError(f"attachments_root {self.attachments_root}: there is no such folder")
        if not self.ordered and (self.keep_input or self.parquet):
            what = "keep_input" if self.keep_input else "a Parquet output"
            raise JobError(f"{what} needs an ordered output")
        if self.review is not None and self.review_below is None:
            raise JobError("review: it needs review_below, the certainty below which rows are reviewed")
        if self.review_below is not None:
            self._check_written("review", self.review_file)
            if self.review_file.resolve() == self.output.resolve():
                raise JobError(f"review {self.review_file}: it is the output")

    def _check_written(self, what: str, path: Path) -> None:
        """Refuse a file that cannot be written, or that the job reads."""
        if path.is_dir():
            raise JobError(f"{what} {path}: it is a folder")
        if not path.parent.is_dir():
            raise JobError(f"{what} {path}: there is no folder {path.parent}")
        target, source = path.resolve(), Path(self.input).resolve()
        if self.input != STDIN and target == source:
            raise JobError(f"{what} {path}: it is the input")
        if self.input != STDIN and source.is_dir() and target.is_relative_to(source):
            raise JobError(f"{what} {path}: it is in the input's folder, where it would be a row")
        if isinstance(self.questions, str) and target == Path(self.questions).resolve():
            raise JobError(f"{what} {path}: it is the file of the questions")

    @property
    def parquet(self) -> bool:
        """Whether the output is a Parquet file."""
        return self.output.suffix == ".parquet"

    @property
    def folder(self) -> Path:
        """Where the job's ledger is, beside the output."""
        return self.output.with_name(self.output.name + ".job")

    @property
    def review_file(self) -> Path:
        """Where uncertain rows are written."""
        return self.review or self.output.with_name(f"{self.output.stem}.review.jsonl")

    @property
    def columns(self) -> Columns:
        """Where in a record a row's parts stand."""
        return Columns(self.state_columns, self.id_column, self.attachment_columns)

    def template(self) -> tuple[SystemOneRequest, bool]:
        """A request with the job's options and questions, and whether the questions are the job's.

        Raises:
            JobError: for questions or options that no request may have.
        """
        questions = self.questions
        if isinstance(questions, str):
            questions = read_questions(Path(questions))
        own = questions is None
        asked = {"-": {"type": "noul", "instructions": "-"}} if own else questions
        options = self.options.model_dump(exclude_none=True)
        try:
            request, _ = parse_request({"state": "-", "questions": asked, "strict": True, **options})
        except BadRequestError as error:
            issue = error.issues[0]
            raise JobError(f"{'.'.join(map(str, issue.loc[1:]))}: {issue.msg}") from None
        # Not sent: `strict` was for this check alone.
        sent = {name: getattr(request, name) for name in ("state", "questions", *options)}
        return SystemOneRequest(**sent), not own


def read_questions(path: Path) -> dict[str, Any]:
    """Questions by id from a JSON file; a whole request body will do.

    Raises:
        JobError: it cannot be read or holds no questions.
    """
    try:
        data = parse_json(path.read_bytes())
    except OSError as error:
        raise JobError(f"questions {path}: it cannot be read ({error.strerror})") from None
    except BadRequestError as error:
        raise JobError(f"questions {path}: {error.issues[0].msg}") from None
    if isinstance(data, dict) and isinstance(data.get("questions"), dict) and "type" not in data["questions"]:
        data = data["questions"]
    if not isinstance(data, dict) or not data:
        raise JobError(f"questions {path}: it must be a JSON object with a question for each id")
    return data


def fingerprint(job: Job, template: SystemOneRequest, *, model: str, input_digest: str) -> dict[str, str]:
    """What makes the job the one that its ledger is of, in parts that a message can name.

    Args:
        job: the job.
        template: of its requests.
        model: what answers, exactly.
        input_digest: what the rows are.
    """
    request = template.model_dump(mode="json")
    questions = request.pop("questions") if job.questions is not None else None
    columns = [job.columns.state, job.columns.id, job.columns.attachments]
    return {
        "questions": _digest(questions),
        "options": _digest(request),
        "model": model,
        "input": input_digest,
        "columns": _digest(columns),
    }


def _digest(value: Any) -> str:
    return hashlib.sha256(dumps(value).encode()).hexdigest()[:32]


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        fields = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise JobError(f"{path}: it cannot be read ({error.strerror})") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise JobError(f"{path}: it is not valid TOML ({error})") from None
    for name in ("input", "output", "attachments_root", "review", "questions"):
        value = fields.get(name)
        if isinstance(value, str) and value != STDIN:
            fields[name] = str(path.parent / value)
    if not isinstance(fields.get("options", {}), dict):
        raise JobError(f"{path}: options must be a table")
    return fields
