from __future__ import annotations

from contextlib import suppress
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.tool import ToolError
from workers.tools.calculator import MAX_DIGITS, evaluate

numbers = st.integers(0, 10**12).map(str)
expressions = st.recursive(
    numbers,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*", "//", "%"]), inner).map(lambda parts: f"({' '.join(parts)})"),
        inner.map(lambda value: f"(-{value})"),
        inner.map(lambda value: f"abs({value})"),
        st.tuples(inner, inner).map(lambda pair: f"max({pair[0]}, {pair[1]})"),
        st.tuples(inner, st.integers(0, 5)).map(lambda pair: f"({pair[0]} ** {pair[1]})"),
    ),
    max_leaves=8,
)


def outcome(expression: str) -> str:
    try:
        return evaluate(expression)
    except ToolError as error:
        return str(error)


@given(expressions.filter(lambda text: len(text) <= 200))
def test_integers_are_calculated_as_python_does(expression: str) -> None:
    try:
        expected = str(eval(expression, {"__builtins__": {"abs": abs, "max": max}}))
    except ZeroDivisionError:
        expected = "division by zero"
    assert outcome(expression) == expected or len(expected) > MAX_DIGITS


@given(st.integers(-(10**9), 10**9), st.integers(0, 12), st.integers(-(10**9), 10**9), st.integers(0, 12))
def test_decimals_are_added_exactly(a: int, a_places: int, b: int, b_places: int) -> None:
    result = evaluate(f"({a}/10**{a_places}) + ({b}/10**{b_places})")
    assert Fraction(result) == Fraction(a, 10**a_places) + Fraction(b, 10**b_places)


@pytest.mark.parametrize(
    ("expression", "result"),
    [
        ("1234*5678", "7006652"),
        ("0.1+0.2", "0.3"),
        ("2**200", "1606938044258990275541962092341162602522202993782792835301376"),
        ("1/3", "0.333333333333333"),
        ("1/3*3", "1"),
        ("10/4", "2.5"),
        ("-7 % 3", "2"),
        ("12.5% of 80", "10"),
        ("100 - 5 % of 1,000", "50"),
        ("-7 // 2", "-4"),
        ("2**-3", "0.125"),
        ("sqrt(16)", "4"),
        ("sqrt(2)", "1.4142135623731"),
        ("2^0.5", "1.4142135623731"),
        ("9^0.5", "3"),
        ("8**(1/3)", "2"),
        ("1,234,567 × 2", "2469134"),
        ("12 ÷ 5 − 1", "1.4"),
        ("3 + 4 =", "7"),
        ("max(1,234)", "234"),
        ("min(3, 2.5, 7)", "2.5"),
        ("round(2.5)", "3"),
        ("round(-2.5)", "-3"),
        ("round(1.005, 2)", "1.01"),
        ("abs(-3.50)", "3.5"),
        ("1e30+0.5", "1e+30"),
        ("2e20/3", "6.66666666666667e+19"),
        ("1_000 + 1", "1001"),
    ],
)
def test_results_are_what_a_person_expects(expression: str, result: str) -> None:
    assert evaluate(expression) == result


@pytest.mark.timeout(5)
@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("1/0", "division by zero"),
        ("0**-1", "division by zero"),
        ("5 % 0", "division by zero"),
        ("9**9**9", "digits"),
        ("9**9**9**9", "digits"),
        ("1.5**1e9", "digits"),
        ("2**13000*2**13000", "digits"),
        ("0.5**0.5**1e300", "digits"),
        ("(1e3999)**1.7", "too big or too small"),
        ("1e999999999", "too big or too small"),
        ("1e-999999999", "too big or too small"),
        ("(" * 250 + "1" + ")" * 249, "not an arithmetic expression"),
        ("-" * 499 + "1", "nested too deeply"),
        ("1+" * 300 + "1", "longer than 500"),
        ("", "not an arithmetic expression"),
        ("\x00", "not an arithmetic expression"),
        ("1 +", "not an arithmetic expression"),
        ("x := 3", "not an arithmetic expression"),
        ("a", "only numbers"),
        ("True + 1", "only numbers"),
        ("1j", "only numbers"),
        ("'a' * 9", "only numbers"),
        ("[1]", "only numbers"),
        ("lambda: 1", "only numbers"),
        ("(1).__class__", "only numbers"),
        ("().__class__.__bases__", "only numbers"),
        ("min(*[1])", "only numbers"),
        ("round(1, ndigits=2)", "only numbers"),
        ("1 << 9", "only + - "),
        ("__import__('os')", "only numbers"),
        ("exec(1)", "not known"),
        ("min()", "takes 1 to 100"),
        ("sqrt(1, 2)", "takes one number"),
        ("sqrt(-1)", "not a real number"),
        ("(-8)**(1/3)", "not a real number"),
        ("round(1, 1e9)", "at most 100"),
    ],
)
def test_everything_else_is_a_clear_error(expression: str, message: str) -> None:
    with pytest.raises(ToolError, match=message.replace("+", r"\+")):
        evaluate(expression)


@given(st.text(max_size=80))
def test_no_input_escapes_as_another_exception(text: str) -> None:
    with suppress(ToolError):
        evaluate(text)
