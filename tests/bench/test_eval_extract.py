"""Answers found in what a model says."""

from __future__ import annotations

import pytest

from bench.eval.extract import choice, extract, is_right, number


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("The answer is 42.", "42"),
        ("The answer is N = 42", "42"),
        ("the answer is: $1,234.50.", "1234.50"),
        ("5 + 5 = 10. The answer is 10. I used 2 steps.", "10"),
        ("The answer is 3. No, wait. The answer is 4.", "4"),
        ("The answer is **-7**", "-7"),
        ("Answer: 12 apples", "12"),
        ("First 3, then 4, so 7 in all", "7"),
        ("#### 18", "18"),
        (r"so \boxed{\$36} it is, 100 %", "36"),
        ("The answer is 1/2.", "1/2"),
        ("He pays $5.00.", "5.00"),
        ("It costs .75", ".75"),
        ("The answer is 3,5 and 7", "3"),
        ("The answer is 1,000,000", "1000000"),
        ("I do not know.", None),
        ("", None),
    ],
)
def test_numbers(text: str, found: str | None) -> None:
    assert number(text) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("The answer is (B).", "B"),
        ("The answer is B", "B"),
        ("The answer is **C**.", "C"),
        ("The correct answer is: (D) because (A) is wrong", "D"),
        ("The answer is (A). On second thoughts the answer is (C).", "C"),
        ("Answer: B", "B"),
        ("**Answer:** B", "B"),
        ("B", "B"),
        ("(B) 12 metres", "B"),
        ("B. 12 metres", "B"),
        ("B: 12 metres", "B"),
        ("Let us see.\nC) is the one", "C"),
        (r"\boxed{D}", "D"),
        ("The answer is option D.", "D"),
        ("The answer is A good question", None),
        ("A good question", None),
        ("It must be (C), I think", "C"),
        ("The answer is (E)", None),
        ("none of them", None),
        ("", None),
    ],
)
def test_letters(text: str, found: str | None) -> None:
    assert choice(text, "ABCD") == found


def test_the_kind_of_answer_depends_on_the_question() -> None:
    assert extract("The answer is (B), 12", "ABCD") == "B"
    assert extract("The answer is (B), 12", "") == "12"


@pytest.mark.parametrize(
    ("given", "wanted", "right"),
    [
        ("5", "5", True),
        ("5.00", "5", True),
        (".5", "1/2", True),
        ("5", "6", False),
        (None, "5", False),
        ("B", "B", True),
        ("B", "C", False),
        ("1/0", "5", False),
    ],
)
def test_numbers_are_compared_by_value(given: str | None, wanted: str, right: bool) -> None:
    assert is_right(given, wanted) is right
