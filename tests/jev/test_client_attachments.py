"""Files given to either client arrive whole, in order and once: inside the request, or uploaded before it."""

from __future__ import annotations

import asyncio
import base64
import io
import os
import threading
from datetime import UTC, datetime
from email import message_from_bytes
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image

from jev import (
    APIError,
    AsyncJev,
    InvalidRequestError,
    Jev,
    Noul,
    ResponseError,
    RetryPolicy,
    TooLargeError,
    UploadedFile,
)
from jev._attachments import MAX_INLINE
from jev.schemas import BadRequestError, parse_json, parse_request

QUESTIONS = {"q": Noul("Is it?")}
ANSWER = {
    "model": "m",
    "answers": {"q": {"type": "noul", "noul": 0.5}},
    "usage": {"input_tokens": 1, "output_tokens": 1},
}
UPLOADED = UploadedFile(id="file-0", name="old.pdf", bytes=3, kind="pdf")
LARGE = MAX_INLINE + 1
ENTRY = {"id": "file-1", "name": "a", "bytes": 1, "kind": "pdf"}


class Server:
    """Canned answers for one client of either kind, and what it was sent."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.requests: list[httpx.Request] = []
        self.failures: list[int] = []
        self.refusal: dict[str, Any] = {"detail": {"message": "no", "error_type": "x"}}
        self.upload: dict[str, Any] | None = None

    def __call__(self, method: str, *args: Any, **options: Any) -> Any:
        given: dict[str, Any] = {
            "transport": httpx.MockTransport(self._answer),
            "retry": RetryPolicy(max_retries=2, backoff=0.001),
            "headers": {"x-client": "1"},
        }
        if self.kind == "sync":
            with Jev(**given) as jev:
                return getattr(jev, method)(*args, **options)

        async def run() -> Any:
            async with AsyncJev(**given) as jev:
                return await getattr(jev, method)(*args, **options)

        return asyncio.run(run())

    def decide(self, *attachments: Any, **options: Any) -> Any:
        return self("decide", "state", QUESTIONS, attachments=list(attachments), **options)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        if self.failures:
            headers = {"x-request-id": "r-1"}
            return httpx.Response(self.failures.pop(0), json=self.refusal, headers=headers)
        if request.url.path == "/v1/systemone":
            return httpx.Response(200, json=ANSWER)
        name, data = part_of(request)
        entry = {"id": f"file-{len(self.requests)}", "name": name, "bytes": len(data), "kind": "text"}
        entry |= {"sha256": "0" * 64, "expires_at": "2026-01-02T03:04:05Z"}
        return httpx.Response(200, json=self.upload or {"files": [entry]})

    @property
    def paths(self) -> list[str]:
        return [request.url.path for request in self.requests]

    @property
    def body(self) -> dict[str, Any]:
        """What was decided on; it must be a request that a server accepts."""
        body = parse_json(self.requests[-1].content)
        parse_request({**body, "strict": True})
        return body

    @property
    def files(self) -> list[tuple[str, bytes]]:
        return [(entry["name"], base64.b64decode(entry["data"])) for entry in self.body["files"]]


def part_of(request: httpx.Request) -> tuple[str, bytes]:
    """Name and content of the only part of a multipart body."""
    head = f"content-type: {request.headers['content-type']}\r\n\r\n".encode()
    message = message_from_bytes(head + request.content)
    (part,) = message.get_payload()  # type: ignore[misc]
    assert part.get_param("name", header="content-disposition") == "file"  # type: ignore[union-attr]
    return part.get_filename(), part.get_payload(decode=True)  # type: ignore[union-attr]


@pytest.fixture(params=["sync", "async"])
def server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Server:
    monkeypatch.delenv("JEV_BASE_URL", raising=False)
    monkeypatch.delenv("JEV_API_KEY", raising=False)
    return Server(request.param)


class PathLike:
    def __init__(self, path: Path) -> None:
        self._path = path

    def __fspath__(self) -> str:
        return str(self._path)


class TestInline:
    def test_every_kind_of_file_goes_in_its_order(self, server: Server, tmp_path: Path) -> None:
        file = tmp_path / "größe 1.txt"
        file.write_bytes(b"from disk")
        with file.open("rb") as opened:
            opened.seek(5)
            server.decide(
                file,
                b"bytes",
                PathLike(file),
                ("named.eml", bytearray(b"pair")),
                opened,
                memoryview(b"view"),
                io.BytesIO(b"memory"),
                ("also.txt", file),
            )
        assert server.paths == ["/v1/systemone"]
        assert server.files == [
            ("größe 1.txt", b"from disk"),
            ("attachment-2", b"bytes"),
            ("größe 1.txt", b"from disk"),
            ("named.eml", b"pair"),
            ("größe 1.txt", b"disk"),
            ("attachment-6", b"view"),
            ("attachment-7", b"memory"),
            ("also.txt", b"from disk"),
        ]

    def test_without_attachments_there_is_no_field(self, server: Server) -> None:
        server.decide()
        assert "files" not in server.body
        server("decide", "state", QUESTIONS, attachments=None)
        assert "files" not in server.body

    def test_files_of_extra_body_come_first(self, server: Server) -> None:
        entry = {"name": "first.txt", "data": "YQ=="}
        server.decide(b"second", extra_body={"files": [entry]})
        assert server.files == [("first.txt", b"a"), ("attachment-1", b"second")]
        server.decide(b"only", extra_body={"files": None})
        assert server.files == [("attachment-1", b"only")]

    @pytest.mark.parametrize(
        "mode", ["1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "I", "I;16", "F", "CMYK", "YCbCr"]
    )
    def test_pictures_go_as_png(self, server: Server, mode: str) -> None:
        via = {"La": "LA", "PA": "P", "RGBa": "RGBA"}.get(mode, "RGB")
        picture = Image.new("RGB", (3, 2), (200, 0, 0)).convert(via).convert(mode)
        server.decide(b"x", picture)
        name, data = server.files[1]
        assert name == "attachment-2.png"
        with Image.open(io.BytesIO(data)) as sent:
            assert (sent.format, sent.size) == ("PNG", (3, 2))
            if mode in ("P", "PA", "RGB", "RGBA", "RGBa", "CMYK", "YCbCr"):
                red, green, blue = sent.convert("RGB").getpixel((0, 0))  # type: ignore[misc]
                assert red > 180 > 40 > max(green, blue)

    def test_a_picture_keeps_which_side_is_up(self, server: Server) -> None:
        exif = Image.Exif()
        exif[0x0112] = 6
        jpeg = io.BytesIO()
        Image.new("RGB", (4, 2)).save(jpeg, "JPEG", exif=exif)
        with Image.open(jpeg) as photo:
            server.decide(photo)
        with Image.open(io.BytesIO(server.files[0][1])) as sent:
            assert sent.getexif()[0x0112] == 6

    def test_as_much_as_fits_goes_inside(self, server: Server) -> None:
        server.decide(bytes(MAX_INLINE - 3), b"abc")
        assert server.paths == ["/v1/systemone"]
        assert [len(data) for _, data in server.files] == [MAX_INLINE - 3, 3]

    def test_a_pipe_is_read_once(self, server: Server, tmp_path: Path) -> None:
        pipe = tmp_path / "pipe.txt"
        os.mkfifo(pipe)
        writer = threading.Thread(target=pipe.write_bytes, args=(b"through",))
        writer.start()
        server.failures = [503]
        server.decide(pipe)
        writer.join(10)
        assert server.files == [("pipe.txt", b"through")]

    def test_a_file_object_is_read_once_for_all_tries(self, server: Server) -> None:
        server.failures = [503, 503]
        server.decide(io.BytesIO(b"once"))
        assert len(server.requests) == 3
        assert len({request.content for request in server.requests}) == 1
        assert server.files == [("attachment-1", b"once")]

    def test_names_that_a_request_may_not_have_are_made_plain(self, server: Server, tmp_path: Path) -> None:
        odd = tmp_path / "a\\b\nc.txt"
        odd.write_bytes(b"x")
        undecodable = os.fsencode(tmp_path) + b"/\xff.txt"
        Path(os.fsdecode(undecodable)).write_bytes(b"y")
        server.decide(odd, Path(os.fsdecode(undecodable)))
        assert server.files == [("a_b_c.txt", b"x"), ("?.txt", b"y")]


class TestRefusedBeforeAnythingIsSent:
    @pytest.mark.parametrize(
        ("name", "kind"), [("missing.pdf", FileNotFoundError), (".", IsADirectoryError), ("a/b", OSError)]
    )
    def test_a_path_that_cannot_be_read(
        self, server: Server, tmp_path: Path, name: str, kind: type[OSError]
    ) -> None:
        with pytest.raises(kind, match=str(tmp_path)):
            server.decide(bytes(LARGE), tmp_path / name)
        assert server.requests == []

    def test_a_reader_that_fails(self, server: Server) -> None:
        class Broken:
            def read(self) -> bytes:
                raise OSError("disk on fire")

        with pytest.raises(OSError, match="disk on fire"):
            server.decide(bytes(LARGE), Broken())
        assert server.requests == []

    @pytest.mark.parametrize("extra", [0, 3])
    def test_too_many_with_the_words_of_the_server(self, server: Server, extra: int) -> None:
        entries = [{"name": "a", "data": "YQ=="}] * 9
        body = {"state": "s", "questions": {"q": {"type": "noul", "instructions": "Is it?"}}}
        with pytest.raises(BadRequestError) as expected:
            parse_request({**body, "files": entries[extra:], "documents": entries[:extra]})
        with pytest.raises(InvalidRequestError) as caught:
            server.decide(*[Path("/not/looked/at")] * (9 - extra), extra_body={"documents": entries[:extra]})
        assert caught.value.issues == expected.value.issues
        assert "9 attachments" in caught.value.message
        assert server.requests == []

    @pytest.mark.parametrize(
        ("attachments", "message"),
        [
            (["invoice.pdf"], r"attachment 1 is a str; .* Path\('invoice.pdf'\)"),
            ([b"x", 7], "attachment 2 must be a path, bytes, a file object or a picture, got int"),
            ([None], "got NoneType"),
            ([("a", b"x", b"y")], r"attachment 1: a tuple must be \(name, content\)"),
            ([(b"x", "a")], "a tuple must be"),
            ([io.StringIO("text")], "gave str, not bytes; open files in mode 'rb'"),
            (b"bytes", "attachments must be a list of files, got bytes"),
            (Path("a.pdf"), "attachments must be a list of files, got PosixPath"),
            (io.BytesIO(b"x"), "attachments must be a list of files, got BytesIO"),
        ],
    )
    def test_what_is_no_file(self, server: Server, attachments: Any, message: str) -> None:
        with pytest.raises(TypeError, match=message):
            server("decide", "state", QUESTIONS, attachments=attachments)
        assert server.requests == []

    @pytest.mark.parametrize("name", ["", "a/b", "a\\b", "..", "a\n", "x" * 256, "\ud800"])
    @pytest.mark.parametrize("size", [1, LARGE])
    def test_a_name_that_is_none(self, server: Server, name: str, size: int) -> None:
        with pytest.raises(InvalidRequestError) as caught:
            server.decide(b"x", (name, bytes(size)))
        assert caught.value.issues[0].loc == ["body", "files", 1, "name"]
        assert server.requests == []

    def test_files_of_extra_body_that_are_no_list(self, server: Server) -> None:
        with pytest.raises(InvalidRequestError, match=r"files: Input should be a valid list"):
            server.decide(bytes(LARGE), extra_body={"files": "x"})
        assert server.requests == []

    def test_questions_that_cannot_be_asked(self, server: Server) -> None:
        with pytest.raises(TypeError, match="question 'q' must be"):
            server("decide", "state", {"q": 1}, attachments=[bytes(LARGE)])
        assert server.requests == []


class TestUploads:
    def test_large_files_are_uploaded_first_and_named_by_id(self, server: Server, tmp_path: Path) -> None:
        file = tmp_path / "größe.bin"
        content = bytes(range(256)) * (LARGE // 256 + 1)
        file.write_bytes(content)
        server.decide(file, UPLOADED, ("small.txt", b"small"))
        assert server.paths == ["/v1/files", "/v1/files", "/v1/systemone"]
        assert part_of(server.requests[0])[1] == content
        assert part_of(server.requests[1]) == ("small.txt", b"small")
        assert server.body["files"] == [
            {"name": "größe.bin", "file": "file-1"},
            {"name": "old.pdf", "file": "file-0"},
            {"name": "small.txt", "file": "file-2"},
        ]
        assert int(server.requests[0].headers["content-length"]) > LARGE

    def test_many_files_that_are_large_together_are_uploaded_too(self, server: Server) -> None:
        server.decide(bytes(MAX_INLINE // 2), bytes(MAX_INLINE // 2), b"x")
        assert server.paths == ["/v1/files"] * 3 + ["/v1/systemone"]

    def test_options_of_the_call_hold_for_its_uploads(self, server: Server) -> None:
        headers = {"Authorization": "Bearer other", "Content-Type": "application/json; a=b"}
        server.decide(bytes(LARGE), headers=headers, timeout=7)
        upload, decision = server.requests
        assert upload.headers["authorization"] == decision.headers["authorization"] == "Bearer other"
        assert upload.headers["content-type"].startswith("multipart/form-data; boundary=")
        assert upload.headers["x-client"] == "1"
        assert upload.extensions["timeout"]["read"] == decision.extensions["timeout"]["read"] == 7

    @pytest.mark.parametrize("on_disk", [True, False])
    def test_a_try_that_fails_is_followed_by_a_whole_one(
        self, server: Server, tmp_path: Path, on_disk: bool
    ) -> None:
        content = os.urandom(LARGE)
        file = tmp_path / "a.bin"
        file.write_bytes(content)
        server.failures = [503, 529]
        server.decide(file if on_disk else io.BytesIO(content))
        assert server.paths == ["/v1/files"] * 3 + ["/v1/systemone"]
        assert {part_of(request)[1] for request in server.requests[:3]} == {content}

    def test_an_upload_that_is_refused_ends_the_call(self, server: Server) -> None:
        server.failures = [413]
        with pytest.raises(TooLargeError):
            server.decide(bytes(LARGE))
        assert server.paths == ["/v1/files"]

    def test_an_upload_that_is_refused_is_named_as_in_the_request(self, server: Server) -> None:
        row = {"loc": ["body", "files", 0], "msg": "'b.pdf': It is damaged", "type": "attachment"}
        server.failures, server.refusal = [422], {"detail": [row]}
        own = {"files": [{"name": "x", "data": "eA=="}]}
        with pytest.raises(InvalidRequestError, match=r"files\.2: 'b\.pdf': It is damaged") as caught:
            server.decide(UPLOADED, ("b.pdf", bytes(LARGE)), extra_body=own)
        assert [issue.loc for issue in caught.value.issues] == [["body", "files", 2]]
        assert caught.value.request_id == "r-1"
        assert server.paths == ["/v1/files"]

    @pytest.mark.parametrize(
        "answer",
        [
            {"files": []},
            {"files": [{"id": "x"}]},
            {"id": 1},
            {"files": [ENTRY] * 2},
            {"files": [{**ENTRY, "id": 1}]},
        ],
    )
    def test_an_answer_that_is_not_one_file(self, server: Server, answer: dict[str, Any]) -> None:
        server.upload = answer
        with pytest.raises(ResponseError, match="files"):
            server.decide(bytes(LARGE))
        assert server.paths == ["/v1/files"]

    def test_upload_returns_a_file_for_any_number_of_decisions(self, server: Server) -> None:
        file = server("upload", b"content", "notes.txt")
        assert part_of(server.requests[0]) == ("notes.txt", b"content")
        expires = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
        assert file == UploadedFile(
            id="file-1", name="notes.txt", bytes=7, kind="text", sha256="0" * 64, expires_at=expires
        )
        for _ in range(2):
            server.decide(file)
            assert server.body["files"] == [{"name": "notes.txt", "file": "file-1"}]
        assert server.paths == ["/v1/files", "/v1/systemone", "/v1/systemone"]
        assert server("upload", file) is file

    def test_a_name_with_quotes_stays_itself(self, server: Server) -> None:
        assert server("upload", b"x", 'a "b".txt').name == 'a "b".txt'

    def test_upload_takes_what_attachments_take(self, server: Server, tmp_path: Path) -> None:
        file = tmp_path / "a.txt"
        file.write_bytes(b"disk")
        for one, expected in (
            (file, ("a.txt", b"disk")),
            (io.BytesIO(b"memory"), ("attachment-1", b"memory")),
            (("b.txt", b"pair"), ("b.txt", b"pair")),
        ):
            server("upload", one)
            assert part_of(server.requests[-1]) == expected
        with pytest.raises(TypeError, match="Path"):
            server("upload", "a.txt")
        with pytest.raises(FileNotFoundError):
            server("upload", tmp_path / "none")
        with pytest.raises(InvalidRequestError):
            server("upload", b"x", "a/b")
        assert len(server.requests) == 3

    def test_a_server_without_uploads_says_so(self, server: Server) -> None:
        server.failures = [404]
        with pytest.raises(APIError) as caught:
            server("upload", b"x")
        assert caught.value.status == 404
