"""A mail gives its headers, its text and its attachments, each read like any file and named in the text."""

from __future__ import annotations

import base64
import io
from email.message import EmailMessage
from email.policy import SMTP

import docx
import pytest
from PIL import Image

from jev.extractors import Evidence, LimitExceeded, Limits, Unreadable
from jev.extractors.extract import extract
from jev.extractors.options import Options

LIMITS = Limits()


def mail(text: str | None = "Hello,\nplease read.", **headers: str) -> EmailMessage:
    message = EmailMessage()
    defaults = {"From": "Ann <ann@example.com>", "To": "bob@example.com", "Subject": "Invoice"}
    for name, value in {**defaults, **headers}.items():
        message[name] = value
    if text is not None:
        message.set_content(text)
    return message


def read(message: EmailMessage | bytes, limits: Limits = LIMITS, slots: int = 8) -> Evidence:
    data = message if isinstance(message, bytes) else message.as_bytes(policy=SMTP)
    return extract(data, "a.eml", limits, picture_slots=slots, options=Options())


def png(width: int = 4, height: int = 3) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (width, height), "red").save(out, "PNG")
    return out.getvalue()


def word(text: str) -> bytes:
    document = docx.Document()
    document.add_paragraph(text)
    out = io.BytesIO()
    document.save(out)
    return out.getvalue()


def test_headers_and_text() -> None:
    evidence = read(mail(Date="Mon, 06 May 2024 10:00:00 +0200", Cc="carl@example.com", Received="from x"))
    assert evidence.kind == "email"
    assert evidence.text.split("\n") == [
        "From: Ann <ann@example.com>",
        "To: bob@example.com",
        "Cc: carl@example.com",
        "Date: Mon, 06 May 2024 10:00:00 +0200",
        "Subject: Invoice",
        "",
        "Hello,",
        "please read.",
    ]
    assert evidence.notes == ("No attachments",)


def test_encoded_headers_and_bodies_are_decoded() -> None:
    message = mail("Grüße, 世界\n", Subject="Störung 世界", From="Jörg <j@example.com>")
    data = message.as_bytes(policy=SMTP)
    assert b"=?utf-8?" in data
    text = read(data).text
    assert "Subject: Störung 世界" in text
    assert "From: Jörg <j@example.com>" in text
    assert "Grüße, 世界" in text


@pytest.mark.parametrize(
    ("head", "body"),
    [
        (b"Subject: =?iso-8859-2?Q?za=BF=F3=B3=E6?=", "zażółć"),
        ("Subject: naïve bytes".encode(), "naïve bytes"),
        (b"Subject: =?unknown-9?Q?ab?=", "ab"),
        (b"Subject: =?utf-8?B?aaaaa?= rest", "=?utf-8?B?aaaaa?= rest"),
        (b"Subject: folded\r\n  over\r\n\tlines", "folded over lines"),
    ],
)
def test_headers_of_every_make(head: bytes, body: str) -> None:
    data = head + b"\r\nFrom: a@b\r\n\r\ntext"
    assert read(data).text == f"From: a@b\nSubject: {body}\n\ntext"


@pytest.mark.parametrize(
    ("charset", "text"),
    [("iso-2022-jp", "こんにちは"), ("koi8-r", "Привет"), ("windows-1252", "“fine” £5")],
)
def test_the_declared_charset_of_the_text_is_used(charset: str, text: str) -> None:
    head = f"From: a@b\r\nSubject: x\r\nContent-Type: text/plain; charset={charset}\r\n\r\n".encode()
    assert read(head + text.encode(charset)).text.endswith(text)


def test_the_plain_version_is_preferred_and_the_other_noted() -> None:
    message = mail("the plain text")
    message.add_alternative("<p>the <b>rich</b> text</p>", subtype="html")
    evidence = read(message)
    assert "the plain text" in evidence.text
    assert "rich" not in evidence.text
    assert "Of the text's versions the plain one was read" in evidence.notes


@pytest.mark.parametrize("plain", [None, " \n"])
def test_html_is_read_where_there_is_no_plain_text(plain: str | None) -> None:
    message = mail(plain)
    html = "<table><tr><td>a<td>b</table><p hidden>no</p>"
    if plain is None:
        message.set_content(html, subtype="html")
    else:
        message.add_alternative(html, subtype="html")
    evidence = read(message)
    assert evidence.text.endswith("a\tb")
    assert "Hidden parts of the page were not read: 1" in evidence.notes


def test_attachments_are_read_and_named() -> None:
    message = mail()
    message.add_attachment(b"a,b\n1,2\n", maintype="text", subtype="csv", filename="data.csv")
    message.add_attachment(
        word("From Word"), maintype="application", subtype="octet-stream", filename="Brief.docx"
    )
    message.add_attachment(png(), maintype="image", subtype="png", filename="foto äö.png")
    evidence = read(message)
    assert evidence.text.endswith(
        'please read.\n\nAttachment "data.csv" (text):\na,b\n1,2\n\n'
        '\nAttachment "Brief.docx" (document):\nFrom Word\n\nAttachment "foto äö.png" (image):'
    )
    (picture,) = evidence.pictures
    assert (picture.width, picture.height, picture.place) == (4, 3, "attachment 3")
    assert evidence.notes[0] == "Attachments: 3"
    assert "Attachment 2: Text only: images, charts, comments and formatting were not read" in evidence.notes


def test_inline_pictures_of_the_rich_version_are_read_too() -> None:
    message = mail("see the picture")
    message.add_alternative('<p>see <img src="cid:x"></p>', subtype="html")
    message.get_payload()[1].add_related(png(), "image", "png", cid="<x>")  # type: ignore[index, union-attr]
    evidence = read(message)
    assert [picture.place for picture in evidence.pictures] == ["attachment 1"]
    assert 'Attachment "attachment 1" (image):' in evidence.text


def test_attachments_without_a_reader_are_named_and_noted() -> None:
    message = mail()
    message.add_attachment(
        b"PK\x05\x06" + b"\0" * 18, maintype="application", subtype="zip", filename="a.zip"
    )
    message.add_attachment(b"BEGIN:VCALENDAR", maintype="text", subtype="calendar", filename="invite.ics")
    evidence = read(message)
    assert 'Attachment "a.zip" (not read):' in evidence.text
    assert 'Attachment "invite.ics" (not read):' in evidence.text
    assert sum("was not read" in note for note in evidence.notes) == 2
    assert "Attachment 2 was not read: Its name ends in an unsupported file type" in evidence.notes


def test_a_damaged_attachment_is_an_error_that_names_it() -> None:
    message = mail()
    message.add_attachment(b"fine", maintype="text", subtype="plain", filename="ok.txt")
    message.add_attachment(word("x")[:500], maintype="application", subtype="x", filename="bad.docx")
    with pytest.raises(Unreadable, match=r"^In attachment 2: Its archive is damaged or cut short$"):
        read(message)


def test_a_limit_in_an_attachment_keeps_its_numbers() -> None:
    message = mail()
    message.add_attachment(b"x" * 40_000, maintype="text", subtype="plain", filename="long.txt")
    with pytest.raises(LimitExceeded, match=r"^In attachment 1: It has 40,000 characters") as error:
        read(message)
    assert (error.value.limit, error.value.actual) == ("max_text_chars", 40_000)


def test_text_and_attachments_count_together() -> None:
    message = mail("y" * 900)
    message.add_attachment(b"x" * 900, maintype="text", subtype="plain", filename="long.txt")
    assert len(read(message, Limits(max_text_chars=2000)).text) < 2000
    with pytest.raises(LimitExceeded):
        read(message, Limits(max_text_chars=1500))


def test_pictures_over_the_slots_are_refused() -> None:
    message = mail()
    for number in range(3):
        message.add_attachment(png(), maintype="image", subtype="png", filename=f"{number}.png")
    assert len(read(message, slots=3).pictures) == 3
    with pytest.raises(LimitExceeded) as error:
        read(message, slots=2)
    assert error.value.limit == "max_images"


def nested(depth: int, *, as_file: bool = False) -> EmailMessage:
    message = mail(f"level {depth}", Subject=f"S{depth}")
    for level in reversed(range(depth)):
        outer = mail(f"level {level}", Subject=f"S{level}")
        if as_file:
            data = message.as_bytes(policy=SMTP)
            outer.add_attachment(
                data, maintype="application", subtype="octet-stream", filename=f"m{level}.eml"
            )
        else:
            outer.add_attachment(message)
        message = outer
    return message


@pytest.mark.parametrize("as_file", [False, True])
def test_mails_within_mails_are_read_to_a_depth(as_file: bool) -> None:
    text = read(nested(2, as_file=as_file)).text
    places = [text.index(f"Subject: S{level}") for level in range(3)]
    assert places == sorted(places)
    assert all(f"level {level}" in text for level in range(3))
    with pytest.raises(LimitExceeded, match="max_email_depth") as error:
        read(nested(3, as_file=as_file))
    assert (error.value.limit, error.value.actual) == ("max_email_depth", 3)


def test_a_mail_hidden_under_another_name_counts_as_a_level() -> None:
    outer = mail("outer")
    inner = nested(2, as_file=True).as_bytes(policy=SMTP)
    outer.add_attachment(inner, maintype="application", subtype="octet-stream", filename="README")
    with pytest.raises(LimitExceeded, match="max_email_depth"):
        read(outer)


def test_the_number_of_attachments_is_limited_over_all_levels() -> None:
    message = mail()
    for number in range(8):
        message.add_attachment(b"x", maintype="text", subtype="plain", filename=f"{number}.txt")
    read(message)
    message.add_attachment(b"x", maintype="text", subtype="plain", filename="9.txt")
    with pytest.raises(LimitExceeded, match="9 attachments of the mail") as error:
        read(message)
    assert error.value.limit == "max_email_attachments"


def test_names_cannot_lead_anywhere() -> None:
    message = mail()
    message.add_attachment(b"x", maintype="text", subtype="plain", filename="../../etc/pass\x01wd.txt")
    assert 'Attachment "passwd.txt" (text):' in read(message).text


def test_an_empty_attachment_is_named() -> None:
    message = mail()
    message.add_attachment(b"", maintype="text", subtype="plain", filename="none.txt")
    assert 'Attachment "none.txt" (empty):' in read(message).text


def test_a_mail_that_is_cut_short_says_so() -> None:
    message = mail()
    message.add_attachment(b"complete", maintype="text", subtype="plain", filename="a.txt")
    data = message.as_bytes(policy=SMTP)
    evidence = read(data[: data.rindex(b"--==")])
    assert "The mail is malformed or cut short: some content may be missing" in evidence.notes


@pytest.mark.parametrize(
    "data", [b"just text", b"\n\nfrom nobody", b"X-Other: header\n\nbody", b"\x00\x01\x02" * 99]
)
def test_what_has_no_mail_headers_is_refused(data: bytes) -> None:
    with pytest.raises(Unreadable, match="not a mail"):
        read(data)


def test_a_multipart_mail_without_a_boundary_is_refused() -> None:
    with pytest.raises(Unreadable, match="cannot be told apart"):
        read(b"From: a@b\nSubject: x\nContent-Type: multipart/mixed\n\n--x\n\ntext\n")


def raw(*lines: str | bytes) -> bytes:
    encoded = [one if isinstance(one, bytes) else one.encode() for one in lines]
    return b"\r\n".join([b"From: a@example.com", b"Subject: s", b"MIME-Version: 1.0", *encoded])


@pytest.mark.parametrize("wrap", [False, True])
def test_an_invitation_is_not_taken_for_the_text(wrap: bool) -> None:
    """The richest version comes last, but a calendar is none."""
    html = ["Content-Type: text/html", "", "<p>Please bring the CONTRACT.</p>"]
    if wrap:
        html = ['Content-Type: multipart/related; boundary="r"', "", "--r", *html, "--r--"]
    data = raw(
        'Content-Type: multipart/alternative; boundary="b"',
        "",
        "--b",
        *html,
        "--b",
        "Content-Type: text/x-amp-html",
        "",
        "<html amp4email>AMP</html>",
        "--b",
        "Content-Type: text/calendar",
        "",
        "BEGIN:VCALENDAR\r\nSUMMARY:Meeting\r\nEND:VCALENDAR",
        "--b--",
    )
    evidence = read(data)
    assert "Please bring the CONTRACT." in evidence.text
    assert "SUMMARY:Meeting" in evidence.text
    assert "AMP" not in evidence.text
    assert evidence.notes[0] == "Attachments: 1"


def test_one_bad_byte_spoils_no_other_letter() -> None:
    body = "Grüße aus München, 5 € — schön".encode() + b"\r\n--\xa0 list footer"
    evidence = read(
        raw("Content-Type: text/plain; charset=utf-8", "Content-Transfer-Encoding: 8bit", "", body)
    )
    assert "Grüße aus München, 5 € — schön" in evidence.text
    assert "Bytes that are not UTF-8 were replaced: 1" in evidence.notes


def test_attached_text_is_in_the_encoding_that_its_part_names() -> None:
    table = "miasto;kwota\nŁódź;5".encode("cp1250")
    data = raw(
        'Content-Type: multipart/mixed; boundary="b"',
        "",
        "--b",
        'Content-Type: text/csv; charset=windows-1250; name="a.csv"',
        "",
        table,
        "--b--",
    )
    assert "Łódź;5" in read(data).text


def test_a_mail_that_is_attached_in_base64_is_read() -> None:
    inner = base64.encodebytes(mail("The inner text.", Subject="Inner").as_bytes(policy=SMTP))
    data = raw(
        'Content-Type: multipart/mixed; boundary="b"',
        "",
        "--b",
        'Content-Type: message/rfc822; name="inner.eml"',
        "Content-Transfer-Encoding: base64",
        "",
        inner,
        "--b--",
    )
    text = read(data).text
    assert "Subject: Inner" in text
    assert "The inner text." in text


def test_a_cut_character_in_a_header_is_no_reason_to_refuse_the_mail() -> None:
    word = base64.b64encode("Grüße ü".encode()[:-1]).decode()
    data = raw(f"To: =?utf-8?B?{word}?=", "", "The body.")
    text = read(data).text
    assert "To: Grüße \ufffd" in text
    assert "The body." in text


def test_backslashes_of_a_header_stay() -> None:
    data = raw("To: =?utf-8?Q?R=C3=BCckfrage?= C:\\users\\x", "", "x")
    assert "To: Rückfrage C:\\users\\x" in read(data).text
