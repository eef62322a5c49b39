"""The wire of batch jobs, in the shape of OpenAI's batch API: jobs, their input lines, their result lines."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from jev.schemas.attachments import MAX_NAME

ENDPOINT = "/v1/systemone"
"""The one endpoint whose requests a batch may hold."""

MAX_METADATA = 16
"""Most entries of a batch's metadata."""
MAX_CUSTOM_ID = 512
"""Most characters of a line's `custom_id`."""

BatchStatus: TypeAlias = Literal[
    "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
]
ENDED: frozenset[BatchStatus] = frozenset({"failed", "completed", "expired", "cancelled"})
"""The statuses that a batch does not leave."""

Hours = Annotated[str, Field(pattern=r"^([1-9]|[1-9][0-9]|1[0-5][0-9]|16[0-8])h$")]
MetadataKey = Annotated[str, Field(min_length=1, max_length=64)]
MetadataValue = Annotated[str, Field(max_length=512)]


class BatchCreate(BaseModel):
    """The body of `POST /v1/batches`."""

    model_config = ConfigDict(extra="ignore")

    input_file_id: str = Field(
        min_length=1, max_length=MAX_NAME, description="id of an uploaded file of JSON lines"
    )
    endpoint: Literal["/v1/systemone"] = Field(description="the endpoint that every line names too")
    completion_window: Hours = Field(default="24h", description="hours until it expires: 1h to 168h")
    metadata: dict[MetadataKey, MetadataValue] | None = Field(default=None, max_length=MAX_METADATA)


class BatchLine(BaseModel):
    """One line of the input file; `body` is a request as `POST /v1/systemone` takes it."""

    model_config = ConfigDict(extra="ignore")

    custom_id: str = Field(min_length=1, max_length=MAX_CUSTOM_ID)
    method: Literal["POST"]
    url: Literal["/v1/systemone"]
    body: dict[str, Any]


class BatchCounts(BaseModel):
    """How many requests a batch has, and how many have an answer or an error already."""

    total: int = 0
    completed: int = 0
    failed: int = 0


class BatchIssue(BaseModel):
    """Why a batch failed as a whole, with the first line (from 1) that it is about."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class BatchIssues(BaseModel):
    """A list of them."""

    object: Literal["list"] = "list"
    data: list[BatchIssue]


class BatchUsage(BaseModel):
    """Tokens of all answered requests of a batch."""

    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = 0


class Batch(BaseModel):
    """A batch job; all times are whole seconds since 1970.

    Attributes:
        id: what the API names it by.
        errors: why it failed as a whole.
        output_file_id: the file of answers, once it has ended with at least one.
        error_file_id: the file of requests without an answer, once it has ended with at least one.
        model: the model that answers.
        usage: tokens read so far.
    """

    id: str
    object: Literal["batch"] = "batch"
    endpoint: str = ENDPOINT
    model: str | None = None
    errors: BatchIssues | None = None
    input_file_id: str
    completion_window: str
    status: BatchStatus
    output_file_id: str | None = None
    error_file_id: str | None = None
    created_at: int
    in_progress_at: int | None = None
    expires_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    request_counts: BatchCounts = Field(default_factory=BatchCounts)
    usage: BatchUsage | None = None
    metadata: dict[str, str] | None = None

    @property
    def ended(self) -> bool:
        """Whether it will not change any more."""
        return self.status in ENDED


class BatchList(BaseModel):
    """The body of `GET /v1/batches`, the newest batch first."""

    object: Literal["list"] = "list"
    data: list[Batch]
    first_id: str | None = None
    last_id: str | None = None
    has_more: bool = False


class BatchResponse(BaseModel):
    """The HTTP response that a line's request would have got."""

    status_code: int
    request_id: str
    body: dict[str, Any]


class LineError(BaseModel):
    """Why a line has no HTTP response: it is not a request, or its batch ended before its turn."""

    code: str
    message: str


class BatchResult(BaseModel):
    """One line of the output file or the error file: exactly one of `response` and `error` is there."""

    id: str
    custom_id: str | None = None
    response: BatchResponse | None = None
    error: LineError | None = None


class FileObject(BaseModel):
    """A file as OpenAI's API shows it: an upload with a `purpose`, or the results of a batch."""

    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    expires_at: int | None = None
    filename: str
    purpose: str
    status: Literal["uploaded", "processed", "error"] = "processed"
