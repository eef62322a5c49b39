"""Proves that a backend that is wrong in one way shows in the figure for that way, and in no other."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from quality_fakes import QUESTIONS, Answers, Fake, hash_of, rows_file, tempered
from scipy.stats import binomtest

from jev.quality.data import LabelledRow, read_rows
from jev.quality.report import build_report
from jev.quality.run import BackendRun, run_backend
from jev.schemas import Question, alternatives

ROWS = 400


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[LabelledRow]:
    return read_rows(rows_file(tmp_path_factory.mktemp("rows") / "rows.jsonl", ROWS))


def report_of(rows: list[LabelledRow], *fakes: Fake, **options: Any) -> dict[str, Any]:
    async def ask() -> list[BackendRun]:
        return [await run_backend(fake, rows, **options) for fake in fakes]

    return build_report(rows, asyncio.run(ask()), source="rows")


def test_a_calibrated_backend_is_at_its_noise_floor(rows: list[LabelledRow]) -> None:
    figures = report_of(rows, Fake(tempered(1)))["backends"][0]["figures"]
    assert figures["n"] == 3 * ROWS
    assert figures["accuracy"] > 0.6
    assert figures["ece"] < figures["ece_floor"] * 1.7


def test_shuffled_labels_show_in_accuracy_and_f1(rows: list[LabelledRow]) -> None:
    def shuffled(state: str, name: str, question: Question) -> list[float]:
        p = np.array(tempered(1)(state, name, question))
        return list(np.random.default_rng(hash_of(f"shuffle/{state}/{name}")).permutation(p))

    good, bad = (one["figures"] for one in report_of(rows, Fake(tempered(1)), Fake(shuffled))["backends"])
    assert bad["accuracy"] < good["accuracy"] - 0.2
    assert bad["macro_f1"] < good["macro_f1"] - 0.2
    assert bad["intervals"]["accuracy"][1] < good["intervals"]["accuracy"][0]
    assert bad["aurc"] > good["aurc"] + 0.2
    assert bad["qwk"] < good["qwk"] - 0.2


def test_a_temperature_shows_in_calibration_and_log_loss_and_not_in_accuracy(
    rows: list[LabelledRow],
) -> None:
    report = report_of(rows, Fake(tempered(1), "true"), Fake(tempered(3), "warm"))
    good, bad = (one["figures"] for one in report["backends"])
    assert bad["accuracy"] == good["accuracy"]
    assert bad["macro_f1"] == good["macro_f1"]
    assert bad["ece"] > 3 * bad["ece_floor"]
    assert bad["ece"] > good["ece"] + 0.1
    assert bad["nll"] > good["nll"] + 0.1
    (pair,) = report["comparisons"]
    assert pair["agreement"] == 1
    assert pair["mcnemar_p"] == 1
    assert pair["mean_dp"] > 0.1


def test_one_percent_of_flips_is_found_row_by_row(rows: list[LabelledRow]) -> None:
    broken = {f"thing {number}" for number in range(7, ROWS, 100)}

    def flipped(state: str, name: str, question: Question) -> list[float]:
        p = list(tempered(1)(state, name, question))
        return p[::-1] if state in broken and name == "red" else p

    report = report_of(rows, Fake(tempered(1), "a"), Fake(flipped, "b"))
    (pair,) = report["comparisons"]
    assert [
        (flip["row"], flip["question"]) for flip in sorted(pair["flip_list"], key=lambda f: f["row"])
    ] == [(number + 1, "red") for number in range(7, ROWS, 100)]
    assert pair["flips"] == 4
    assert pair["agreement"] == pytest.approx(1 - 4 / (3 * ROWS), abs=1e-12)
    for flip in pair["flip_list"]:
        assert flip["second"]["probabilities"] == pytest.approx(flip["first"]["probabilities"][::-1])
        assert flip["dp"] == max(
            abs(a - b)
            for a, b in zip(flip["first"]["probabilities"], flip["second"]["probabilities"], strict=True)
        )
    first, second = pair["first_only_right"], pair["second_only_right"]
    assert first + second == 4
    assert pair["mcnemar_p"] == pytest.approx(binomtest(first, 4, 0.5).pvalue, abs=1e-12)


def test_two_decimals_are_found_and_floor_the_log_loss_of_all(rows: list[LabelledRow]) -> None:
    def rounded(state: str, name: str, question: Question) -> list[float]:
        return [round(p, 2) for p in tempered(1)(state, name, question)]

    exact = report_of(rows, Fake(tempered(1)))
    report = report_of(rows, Fake(tempered(1), "exact"), Fake(rounded, "rounded"))
    assert exact["nll_floor"] == 1e-15
    assert report["nll_floor"] == 1e-4
    assert [entry["rounded"] for entry in report["backends"]] == [False, True]
    for entry in report["backends"]:
        assert entry["figures"]["nll"] < -np.log(1e-4)
    assert all(
        sum(flip["second"]["probabilities"]) == pytest.approx(1)
        for flip in report["comparisons"][0]["flip_list"]
    )
    assert report["comparisons"][0]["max_dp"] < 0.02


class TestStability:
    @pytest.fixture
    def rows(self, rows: list[LabelledRow]) -> list[LabelledRow]:
        return rows[:60]

    def probes(self, rows: list[LabelledRow], answers: Answers, count: int = 40) -> dict[str, Any]:
        return report_of(rows, Fake(answers), stability=count)["backends"][0]["stability"]

    def test_a_steady_backend_never_moves(self, rows: list[LabelledRow]) -> None:
        found = self.probes(rows, tempered(1))
        for name in ("option order", "seed", "id rename", "isolation"):
            assert found[name]["n"] > 0, name
            assert found[name]["flips"] == 0, name
            assert found[name]["max_dp"] == pytest.approx(0, abs=1e-12), name
        assert found["seed"]["n"] == 3 * 3 * 40
        assert found["paraphrase"]["n"] == 0  # these rows have no other wordings

    def test_a_backend_that_takes_the_first_option_flips_with_their_order(
        self, rows: list[LabelledRow]
    ) -> None:
        found = self.probes(
            rows, lambda _s, _n, q: [0.9] + [0.1 / (len(alternatives(q)) - 1)] * (len(alternatives(q)) - 1)
        )
        assert found["option order"]["flip_rate"] == 1
        assert found["option order"]["n"] == 40
        assert {example["question"] for example in found["option order"]["examples"]} == {"animal"}
        assert found["seed"]["flips"] == found["id rename"]["flips"] == 0

    def test_a_backend_that_reads_ids_flips_when_they_are_renamed(self, rows: list[LabelledRow]) -> None:
        def by_id(state: str, name: str, question: Question) -> list[float]:
            p = list(tempered(1)(state, name, question))
            return p if name in QUESTIONS else p[::-1]

        found = self.probes(rows, by_id)
        assert found["id rename"]["flip_rate"] > 0.5
        assert found["isolation"]["flips"] == 0

    def test_a_backend_whose_answers_leak_flips_when_asked_alone(self, rows: list[LabelledRow]) -> None:
        fake = Fake(lambda state, name, question: leaking(state, name, question))

        def leaking(state: str, name: str, question: Question) -> list[float]:
            p = list(tempered(1)(state, name, question))
            return p[::-1] if len(fake.requests[-1].questions) == 1 else p

        found = report_of(rows, fake, stability=10, concurrency=1)["backends"][0]["stability"]
        assert found["isolation"]["n"] == 30
        assert found["isolation"]["flip_rate"] > 0.5
        assert found["id rename"]["flips"] == 0

    def test_other_wordings_and_other_seeds_are_asked(self, tmp_path: Path) -> None:
        words = {"red": ["Is the colour red?", "Red or not?"], "size": "What is its size?"}
        rows = read_rows(rows_file(tmp_path / "r.jsonl", 20, metadata={"paraphrases": words}))
        fake = Fake(lambda state, name, question: moody(state, name, question))

        def moody(state: str, name: str, question: Question) -> list[float]:
            p = list(tempered(1)(state, name, question))
            turned = question.instructions == "Red or not?" or fake.requests[-1].seed == 2
            return p[::-1] if turned and name == "red" else p

        entry = report_of(rows, fake, stability=20, concurrency=1)["backends"][0]["stability"]
        assert entry["paraphrase"]["n"] == 60
        assert entry["paraphrase"]["flips"] == 20
        assert {example["question"] for example in entry["paraphrase"]["examples"]} == {"red"}
        assert entry["seed"]["n"] == 180
        assert entry["seed"]["flips"] == 20
        assert entry["seed"]["spread"] > 0
