"""The wire: requests, questions, answers and errors as pydantic models. Imports neither torch nor HTTP."""

from jev.schemas.alternatives import alternatives, distribution, index_of
from jev.schemas.attachments import MAX_ATTACHMENTS, Attachment, InlineImage, decode_base64, is_plain_name
from jev.schemas.errors import ErrorBody, ErrorDetail, Issue, IssueList, issues_of
from jev.schemas.files import UploadedFile, UploadedFiles
from jev.schemas.parse import BadRequestError, parse_json, parse_request
from jev.schemas.questions import MAX_LEVELS, MAX_OPTIONS, Choice, Noul, NoulCriteria, Question, Score
from jev.schemas.request import ATTACHMENT_FIELDS, MAX_QUESTIONS, MAX_SAMPLES, Asset, SystemOneRequest
from jev.schemas.response import (
    Answer,
    ChoiceAnswer,
    ListedModel,
    ModelInfo,
    ModelList,
    NoulAnswer,
    ScoreAnswer,
    ServedModels,
    SystemOneResponse,
    Usage,
    Warning,
)
from jev.schemas.rows import Reviewed, Row, Soft
from jev.schemas.text import Text, render_text

__all__ = [
    "ATTACHMENT_FIELDS",
    "MAX_ATTACHMENTS",
    "MAX_LEVELS",
    "MAX_OPTIONS",
    "MAX_QUESTIONS",
    "MAX_SAMPLES",
    "Answer",
    "Asset",
    "Attachment",
    "BadRequestError",
    "Choice",
    "ChoiceAnswer",
    "ErrorBody",
    "ErrorDetail",
    "InlineImage",
    "Issue",
    "IssueList",
    "ListedModel",
    "ModelInfo",
    "ModelList",
    "Noul",
    "NoulAnswer",
    "NoulCriteria",
    "Question",
    "Reviewed",
    "Row",
    "Score",
    "ScoreAnswer",
    "ServedModels",
    "Soft",
    "SystemOneRequest",
    "SystemOneResponse",
    "Text",
    "UploadedFile",
    "UploadedFiles",
    "Usage",
    "Warning",
    "alternatives",
    "decode_base64",
    "distribution",
    "index_of",
    "is_plain_name",
    "issues_of",
    "parse_json",
    "parse_request",
    "render_text",
]
