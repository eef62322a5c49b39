"""The output is the ledger's rows and nothing else, rounded consistently, whatever was left of it before."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from jev.batch.ledger import Ledger
from jev.batch.outcome import Outcome, certainty_of, dumps, failed, output_row, rounded
from jev.batch.output import LinesOutput, kept_input
from jev.batch.readers import JobError, Parquet, Record, RowError
from jev.batch.review import write_review
from jev.decide import to_answer
from jev.errors import InvalidRequestError, ServerError
from jev.schemas import Choice, Noul, Question, Score

QUESTIONS: dict[str, Question] = {
    "angry": Noul("Is it?"),
    "team": Choice("Which?", ["billing", "tech"]),
    "how": Score("How?", ["low", "mid", "high"]),
}


def outcome(number: int, p: float = 0.9) -> Outcome:
    rest = (1 - p) / 2
    answers = {
        "angry": to_answer(QUESTIONS["angry"], [p, 1 - p]),
        "team": to_answer(QUESTIONS["team"], [1 - p, p]),
        "how": to_answer(QUESTIONS["how"], [rest, p, rest]),
    }
    wire = {name: answer.model_dump(mode="json") for name, answer in answers.items()}
    body = {"answers": wire, "usage": {"input_tokens": 9, "output_tokens": 2}, "model": "m"}
    return Outcome(number, f"id{number}", body, b"k", min(map(certainty_of, wire.values())))


def records(skip: int) -> Iterator[Record]:
    for number in range(skip + 1, 10_000):
        yield number, RowError("unreadable") if number == 3 else {"state": f"s{number}"}


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    made = Ledger(tmp_path / "ledger.sqlite")
    yield made
    made.close()


def lines(folder: Path, ledger: Ledger, **options: Any) -> LinesOutput:
    return LinesOutput(folder / "out.jsonl", folder / "partial", ledger, **options)


def enter(ledger: Ledger, output: LinesOutput, *outcomes: Outcome) -> None:
    with ledger.transaction():
        ledger.add(outcomes)
        output.enter(outcomes)


def numbers(file: Path) -> list[int]:
    return [json.loads(line)["row"] for line in file.read_text().splitlines()]


@pytest.mark.parametrize("ordered", [True, False])
def test_what_a_killed_process_wrote_too_much_is_cut_off(
    tmp_path: Path, ledger: Ledger, ordered: bool
) -> None:
    first = lines(tmp_path, ledger, ordered=ordered)
    first.open()
    enter(ledger, first, outcome(2), outcome(1))
    enter(ledger, first, outcome(4))
    first.close()
    with (tmp_path / "partial").open("ab") as file:
        file.write(b'{"row": 9, "half a li')
    second = lines(tmp_path, ledger, ordered=ordered)
    second.open()
    enter(ledger, second, outcome(3))
    second.finish()
    wanted = [1, 2, 3, 4] if ordered else [2, 1, 4, 3]
    assert numbers(tmp_path / "out.jsonl") == wanted
    assert second.finished
    assert not (tmp_path / "partial").exists()


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("lost", ["all", "some"])
def test_an_output_that_was_lost_is_written_anew(
    tmp_path: Path, ledger: Ledger, ordered: bool, lost: str
) -> None:
    first = lines(tmp_path, ledger, ordered=ordered)
    first.open()
    enter(ledger, first, *map(outcome, range(1, 2501)))
    first.close()
    if lost == "all":
        (tmp_path / "partial").unlink()
    else:
        (tmp_path / "partial").write_bytes((tmp_path / "partial").read_bytes()[:1000])
    second = lines(tmp_path, ledger, ordered=ordered)
    second.open()
    second.finish()
    assert numbers(tmp_path / "out.jsonl") == list(range(1, 2501))


def test_another_form_is_written_anew(tmp_path: Path, ledger: Ledger) -> None:
    first = lines(tmp_path, ledger)
    first.open()
    enter(ledger, first, *map(outcome, (1, 2, 3)))
    first.finish()
    kept = lines(tmp_path, ledger, inputs=records)
    assert not kept.finished
    kept.open()
    kept.finish()
    found = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [line.get("input") for line in found] == [{"state": "s1"}, {"state": "s2"}, None]
    again = lines(tmp_path, ledger, inputs=records)
    assert again.finished


def test_numbers_are_rounded_and_agree_with_each_other() -> None:
    p = [0.12345678, 0.23456789, 0.64197533]
    score = to_answer(QUESTIONS["how"], p).model_dump(mode="json")
    found = rounded(score, 6)
    kept = list(found["probabilities"].values())
    assert kept == [0.123457, 0.234568, 0.641975]
    assert found["score"] == pytest.approx(math.fsum(i * q for i, q in enumerate(kept)), abs=1e-6)
    assert found["legend"] == score["legend"]
    choice = to_answer(Choice(["a", "b", "c"]), p).model_dump(mode="json")
    found = rounded(choice, 6)
    assert found["choice"] == "c"
    assert found["confidence"] == pytest.approx((0.641975 - 1 / 3) / (2 / 3), abs=1e-6)
    assert rounded({"type": "noul", "noul": 0.12345678}, 6) == {"type": "noul", "noul": 0.123457}
    # What a server has rounded to two places is passed on as it is, its own confidence too.
    coarse = {"type": "choice", "choice": "a", "probabilities": {"a": 0.67, "b": 0.33}, "confidence": 0.35}
    assert rounded(coarse, 6) == coarse
    exact = output_row(1, None, {"answers": {"q": score}, "usage": {}, "model": "m"}, decimals=None)
    assert exact["answers"] == {"q": score}


def test_reasons_name_the_place() -> None:
    bad = failed(1, None, InvalidRequestError.at("state", msg="Too long"))
    assert output_row(1, None, bad.body) == {
        "row": 1,
        "error": {"type": "invalid_request_error", "message": "state: Too long", "loc": ["state"]},
    }
    assert failed(1, None, ServerError()).body["error"]["status"] == 500
    assert not bad.answered


def test_the_review_queue_begins_with_the_least_certain(tmp_path: Path, ledger: Ledger) -> None:
    output = lines(tmp_path, ledger)
    output.open()
    chances = [0.95, 0.6, 0.55, 0.8, 0.75]
    enter(ledger, output, *(outcome(number, p) for number, p in enumerate(chances, 1)))
    enter(ledger, output, failed(6, None, RowError("no")))
    target = tmp_path / "review.jsonl"

    def inputs(skip: int) -> Iterator[Record]:
        return (one for one in records(skip) if one[0] <= 6)

    def asked(record: object) -> dict[str, object]:
        return {} if isinstance(record, RowError) else {"questions": {"angry": {}}}

    assert write_review(target, ledger, 0.8, inputs, asked, tmp_path / "scratch") == 3
    found = [json.loads(line) for line in target.read_text().splitlines()]
    assert [(line["row"], line["certainty"], line["question"]) for line in found] == [
        (3, 0.55, "angry"),
        (2, 0.6, "angry"),
        (5, 0.75, "angry"),
    ]
    assert "input" not in found[0]  # that row could not be read
    assert "questions" not in found[0]
    assert (found[1]["input"], found[1]["questions"]) == ({"state": "s2"}, {"angry": {}})
    assert found[1]["answers"]["team"]["choice"] == "tech"
    assert not (tmp_path / "scratch").exists()


def test_a_table_may_hold_what_json_has_not() -> None:
    record = {"n": math.nan, "x": [math.inf, 1.5], "b": b"\xff\x00", "d": Decimal("1.50"), "t": "ü"}
    kept = kept_input(record)
    assert kept == {"input": {"n": None, "x": [None, 1.5], "b": "_wA=", "d": "1.50", "t": "ü"}}
    assert dumps(kept)
    assert kept_input({"b": b"text"}) == {"input": {"b": "text"}}


def test_parquet(tmp_path: Path, ledger: Ledger) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    from jev.batch.parquet import ParquetOutput

    ledger.add([outcome(1), failed(2, "b", RowError("broken", type="bad")), outcome(3, 0.4)])
    schema = pa.schema([pa.field("when", pa.date32()), pa.field("text", pa.string())])

    def inputs(skip: int) -> Iterator[Record]:
        return iter([(n, {"when": None, "text": f"t{n}"}) for n in (1, 2, 3)][skip:])

    def output(**options: Any) -> ParquetOutput:
        return ParquetOutput(tmp_path / "out.parquet", tmp_path / "partial", ledger, QUESTIONS, **options)

    one = output(inputs=inputs, schema=schema)
    one.open()
    one.finish()
    assert one.finished
    table = parquet.read_table(tmp_path / "out.parquet")
    assert table.schema.field("when").type == pa.date32()
    first, second, third = table.to_pylist()
    assert first["text"] == "t1"
    assert {name: first[name] for name in ("row", "id", "angry", "team", "how", "error")} == {
        "row": 1,
        "id": "id1",
        "angry": True,
        "team": "tech",
        "how": 1.0,
        "error": None,
    }
    assert first["team_probability"] == 0.9
    assert dict(first["how_probabilities"]) == {"0": 0.05, "1": 0.9, "2": 0.05}
    assert (second["error_type"], second["error"], second["angry"]) == ("bad", "broken", None)
    assert (third["angry"], third["angry_probability"], third["team"]) == (False, 0.4, "billing")
    with pytest.raises(JobError, match="two columns named 'team'"):
        output(inputs=inputs, schema=pa.schema([pa.field("team", pa.string())]))
    as_json = output(inputs=inputs)
    as_json.open()
    as_json.finish()
    assert json.loads(parquet.read_table(tmp_path / "out.parquet").to_pylist()[0]["input"])["text"] == "t1"


def test_parquet_keeps_rows_that_could_not_be_read(
    tmp_path: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of columns that are never empty in the input; long texts end a row group early."""
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    from jev.batch import parquet as module

    monkeypatch.setattr(module, "MOST_BYTES", 1000)
    three = Ledger(tmp_path / "three.sqlite")
    three.add(outcome(n) for n in range(1, 4))
    ledger.add(
        [failed(1, None, RowError("no UTF-8", type="invalid_utf8")), *(outcome(n) for n in range(2, 9))]
    )
    records: list[Record] = [(1, RowError("no UTF-8")), *((n, {"text": "x" * 600}) for n in range(2, 9))]
    target = tmp_path / "out.parquet"
    output = module.ParquetOutput(
        target,
        tmp_path / "partial",
        ledger,
        QUESTIONS,
        inputs=lambda skip: iter(records[skip:]),
        schema=pa.schema([pa.field("text", pa.string(), nullable=False)]),
    )
    output.open()
    output.finish()
    far = pa.table({"when": pa.array([0, 10**18, 5], pa.timestamp("us")), "text": ["a", "b", "c"]})
    parquet.write_table(far, tmp_path / "far.parquet")
    reader = Parquet(tmp_path / "far.parquet")
    kept = module.ParquetOutput(
        tmp_path / "kept.parquet",
        tmp_path / "partial",
        three,
        QUESTIONS,
        inputs=reader.records,
        schema=reader.schema,
    )
    kept.open()
    kept.finish()
    three.close()
    found = parquet.read_table(tmp_path / "kept.parquet")
    assert found["text"].to_pylist() == ["a", "b", "c"]
    assert [value.is_valid for value in found["when"]] == [True, False, True]
    texts = parquet.read_table(target)["text"].to_pylist()
    assert texts == [None, *["x" * 600] * 7]
    assert 3 <= parquet.ParquetFile(target).num_row_groups <= 5
