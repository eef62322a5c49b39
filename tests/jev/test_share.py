"""What goes first waits little; what goes second is not starved."""

from __future__ import annotations

import pytest

from jev.share import Share


def run(share: Share, first_s: float, second_s: float, steps: int) -> tuple[float, float]:
    """Seconds that each kind gets when both always want the next step."""
    spent = {False: 0.0, True: 0.0}
    for _ in range(steps):
        second = share.is_second(first=True, second=True)
        seconds = second_s if second else first_s
        share.note(seconds, second=second, contended=True)
        spent[second] += seconds
    return spent[False], spent[True]


@pytest.mark.parametrize(("first_s", "second_s"), [(0.1, 0.1), (0.02, 0.5), (0.5, 0.02)])
def test_the_second_kind_gets_its_part(first_s: float, second_s: float) -> None:
    first, second = run(Share(0.1), first_s, second_s, 5000)
    least = min(second_s, 0.1 * (first_s + second_s))  # steps are whole
    assert least < second <= 0.11 * (first + second) or second_s < first_s


def test_no_part_is_nothing_while_the_first_is_wanted() -> None:
    assert run(Share(0.0), 0.1, 0.1, 1000)[1] == 0.0


def test_alone_each_goes_at_once() -> None:
    share = Share(0.1)
    assert share.is_second(first=False, second=True)
    assert not share.is_second(first=True, second=False)
    assert not share.is_second(first=False, second=False)


def test_what_is_owed_is_forgotten_when_nobody_waits() -> None:
    share = Share(0.5)
    share.note(0.1, second=True, contended=True)
    share.note(10.0, second=False, contended=True)
    assert share.is_second(first=True, second=True)
    assert not share.is_second(first=True, second=False)
    assert not share.is_second(first=True, second=True)
