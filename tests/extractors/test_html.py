"""A page gives the text a reader sees, in order, tables as rows; what is not seen is left out and counted."""

from __future__ import annotations

import pytest

from jev.extractors import LimitExceeded, Limits, Unreadable
from jev.extractors.html import html_text, read_html

LIMITS = Limits()


def text_of(markup: str) -> str:
    return html_text(markup, LIMITS, may_be_blank=True)[0]


def test_a_page_in_order() -> None:
    page = b"""<!doctype html>
    <html><head><title>News &amp; more</title>
    <style>p { color: red }</style><script>var p = "<p>no</p>";</script></head>
    <body><h1>Big
      news</h1><p>One <b>bo</b>ld<br>line&nbsp;two.</p><!-- not this --><noscript>nor this</noscript>
    <div>Last&#33;</div>tail</body></html>"""
    evidence = read_html(page, "a.html", LIMITS)
    assert evidence.kind == "text"
    assert evidence.text == "News & more\nBig news\nOne bold\nline\xa0two.\nLast!\ntail"
    assert evidence.notes == ()


def test_tables_are_rows_with_tabs() -> None:
    table = """<table><caption>Prices</caption><thead><tr><th>Item<th>Cost<th>Note</thead>
      <tr><td>Tea</td><td><p>3</p><p>EUR</p></td><td></td></tr>
      <tr><td></td><td>4</td><td>big<br>pot</td></tr></table>after"""
    assert text_of(table) == "Prices\nItem\tCost\tNote\nTea\t3 EUR\t\n\t4\tbig pot\nafter"


def test_tables_that_place_things_are_not_rows() -> None:
    page = """<table><tr><td><h1>Shop</h1><p>Welcome</p></td></tr><tr><td>
      <table><tr><td>a</td><td>b</td></tr></table>between<p>and on</p></td></tr></table>"""
    assert text_of(page) == "Shop\nWelcome\na\tb\nbetween\nand on"


def test_a_table_inside_a_cell_keeps_the_order() -> None:
    page = (
        "<table><tr><td>1</td><td>2<table><tr><td>3</td><td>4</td></tr></table>5</td><td>6</td></tr></table>"
    )
    assert text_of(page) == "1\t2\n3\t4\n5\t6"


@pytest.mark.parametrize(
    "hidden",
    [
        "<p hidden>secret</p>",
        '<div style="display:none">secret</div>',
        '<div style="color: red; DISPLAY : none !important">secret <p>more</p></div>',
        '<span style="visibility:hidden">secret</span>',
    ],
)
def test_hidden_parts_are_left_out_and_counted(hidden: str) -> None:
    text, notes = html_text(f"<p>seen{hidden}<p>too", LIMITS)
    assert text.split() == ["seen", "too"]
    assert notes == ("Hidden parts of the page were not read: 1",)


def test_an_empty_hidden_part_is_not_worth_a_note() -> None:
    assert html_text("<p>seen<div hidden> <img src=x></div>", LIMITS) == ("seen", ())


@pytest.mark.parametrize(
    "tag", ["script", "style", "template", "noscript", "iframe", "object", "video", "canvas"]
)
def test_what_is_never_shown_is_left_out(tag: str) -> None:
    assert text_of(f"<p>a</p><{tag}>gone</{tag}><p>b</p>") == "a\nb"


def test_lists_have_their_marks() -> None:
    page = "<ul><li>x<li>y<ol start=3><li>p</li><li>q</li></ol></ul><ol><li>one<li>two</ol>"
    assert text_of(page) == "- x\n- y\n3. p\n4. q\n1. one\n2. two"


def test_preformatted_text_keeps_its_spaces() -> None:
    assert text_of("<pre>a\n  b\n\n\tc</pre> x  y") == "a\n  b\n\n\tc\nx y"


def test_forms_show_their_state() -> None:
    page = """<input type=checkbox checked>agreed<br><input type=radio>no<br><input value="typed">
      <input type=hidden value=secret><input type=password value=secret>
      <select><option selected>DE<option>FR</select><textarea>free
text</textarea>"""
    assert text_of(page) == "[x] agreed\n[ ] no\ntyped\n[x] DE\n[ ] FR\nfree\ntext"


def test_pictures_are_not_loaded_but_their_descriptions_are_text() -> None:
    text, notes = html_text('<p>See <img src="https://example.com/x.png" alt="a dog">, <img src=y>ok', LIMITS)
    assert text == "See [picture: a dog], ok"
    assert notes == ("Pictures on the page were not read: 2",)


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ('<meta charset="koi8-r"><p>Привет'.encode("koi8-r"), "Привет"),
        ("<p>Grüße".encode("utf-16"), "Grüße"),
        ("<p>Grüße".encode(), "Grüße"),
    ],
)
def test_the_encoding_is_that_of_the_bytes(page: bytes, text: str) -> None:
    assert read_html(page, "a.html", LIMITS).text == text


@pytest.mark.parametrize(
    "page",
    [
        "<p>open <b>never <i>closed",
        "<td>cell</td> without table",
        "</p></div></table></tr>x",
        "a < b & c > d",
    ],
)
def test_broken_markup_loses_no_words(page: str) -> None:
    words = [word for word in page.replace("<p>", " ").split() if word.isalpha()]
    for word in words:
        assert word in text_of(page)


def test_entities_are_not_expanded_from_a_document_type() -> None:
    page = '<!DOCTYPE html [<!ENTITY a "aaaa"><!ENTITY b SYSTEM "file:///etc/passwd">]><p>&a;&b;x'
    text = text_of(page)
    assert "aaaa" not in text
    assert "root:" not in text


@pytest.mark.parametrize("page", [b"<html><body></body></html>", b"<script>x</script>", b"<p> &nbsp; </p>"])
def test_pages_without_visible_text_are_refused(page: bytes) -> None:
    with pytest.raises(Unreadable, match="no text"):
        read_html(page, "a.html", LIMITS)


def test_the_limit_is_on_the_text_not_on_the_markup() -> None:
    page = b"<style>" + b"x" * 200_000 + b"</style><p>" + b"a" * 32_768
    assert len(read_html(page, "a.html", LIMITS).text) == 32_768
    with pytest.raises(LimitExceeded, match="32,769 characters"):
        read_html(page + b"a", "a.html", LIMITS)


def test_the_number_of_tags_is_limited() -> None:
    with pytest.raises(LimitExceeded) as error:
        html_text("<i>" * 1001, Limits(max_markup_nodes=1000))
    assert (error.value.limit, error.value.at_least) == ("max_markup_nodes", True)
