"""The `calculator` tool: exact arithmetic over rational numbers, by walking a syntax tree; nothing is executed.

Numbers are rationals, so 0.1+0.2 is 0.3 and integers never lose digits. A result is written exactly when it has at
most 30 significant digits or is an integer, otherwise rounded to 15. `round` rounds halves away from zero, as on paper.
`5% of 80` is 4.
"""

from __future__ import annotations

import ast
import math
import re
import warnings
from collections.abc import Callable
from decimal import ROUND_HALF_EVEN, Context, Decimal, DecimalException
from fractions import Fraction
from typing import Any

from workers.tool import ToolContext, ToolError

MAX_LENGTH = 500
MAX_DEPTH = 60
MAX_DIGITS = 4000
MAX_BITS = int(MAX_DIGITS * math.log2(10))
EXACT_DIGITS = 30
ROUNDED_DIGITS = 15

_IRRATIONAL = Context(prec=40, Emax=MAX_DIGITS, Emin=-MAX_DIGITS)
_SPELLINGS = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-", "^": "**", "\n": " "})
_THOUSANDS = re.compile(r"(?<![\d.])\d{1,3}(?:,\d{3})+(?![\d,])")
_PERCENT_OF = re.compile(r"%\s*of\b", re.IGNORECASE)
_LISTS = re.compile(r"\b(?:min|max|round)\b")


def run(arguments: dict[str, Any], context: ToolContext) -> str:
    """The value of `arguments["expression"]` in decimal. Raises `ToolError`."""
    return evaluate(arguments["expression"])


def evaluate(expression: str) -> str:
    """Raises `ToolError` for anything that is not arithmetic, has no value, or would be too big."""
    if len(expression) > MAX_LENGTH:
        raise ToolError(f"the expression is longer than {MAX_LENGTH} characters")
    source = _normalise(expression)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source, mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise ToolError("this is not an arithmetic expression") from None
    return _write(_Evaluator(source).value(tree.body))


def _normalise(expression: str) -> str:
    text = expression.translate(_SPELLINGS).strip().strip("=").strip()
    text = _PERCENT_OF.sub("/100*", text)
    if not _LISTS.search(text):
        text = _THOUSANDS.sub(lambda match: match[0].replace(",", ""), text)
    return text


class _Evaluator:
    def __init__(self, source: str) -> None:
        self._source = source

    def value(self, node: ast.expr, depth: int = 0) -> Fraction:
        if depth > MAX_DEPTH:
            raise ToolError("the expression is nested too deeply")
        match node:
            case ast.Constant():
                result = self._number(node)
            case ast.UnaryOp(op=ast.UAdd() | ast.USub() as sign, operand=operand):
                inner = self.value(operand, depth + 1)
                result = -inner if isinstance(sign, ast.USub) else inner
            case ast.BinOp(left=left, op=operator, right=right):
                result = _binary(operator, self.value(left, depth + 1), self.value(right, depth + 1))
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
                result = _call(name, [self.value(arg, depth + 1) for arg in args])
            case _:
                raise ToolError("only numbers, + - * / // % ** and sqrt, abs, round, min, max are understood")
        return _bounded(result)

    def _number(self, node: ast.Constant) -> Fraction:
        if isinstance(node.value, bool) or not isinstance(node.value, int | float):
            raise ToolError("only numbers can be calculated with")
        if isinstance(node.value, int):
            return Fraction(node.value)
        # The written digits, because a binary float has already lost some.
        written = Decimal(ast.get_source_segment(self._source, node) or "")
        if abs(written.adjusted()) > MAX_DIGITS:
            raise ToolError("a number in the expression is too big or too small")
        return Fraction(written)


def _binary(operator: ast.operator, left: Fraction, right: Fraction) -> Fraction:
    if isinstance(operator, ast.Div | ast.FloorDiv | ast.Mod) and right == 0:
        raise ToolError("division by zero")
    match operator:
        case ast.Add():
            return left + right
        case ast.Sub():
            return left - right
        case ast.Mult():
            return left * right
        case ast.Div():
            return left / right
        case ast.FloorDiv():
            return Fraction(left // right)
        case ast.Mod():
            return left % right
        case ast.Pow():
            return _power(left, right)
        case _:
            raise ToolError("only + - * / // % ** are understood")


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if base == 0 and exponent < 0:
        raise ToolError("division by zero")
    if exponent.denominator != 1:
        return _irrational_power(base, exponent)
    # A power's size is known before it is computed.
    if max(abs(base.numerator), base.denominator) > 1 and _bits(base) * abs(exponent) > 2 * MAX_BITS:
        raise ToolError(f"the result has more than {MAX_DIGITS} digits")
    return Fraction(base**exponent.numerator)


def _irrational_power(base: Fraction, exponent: Fraction) -> Fraction:
    if base < 0:
        raise ToolError("a broken power of a negative number is not a real number")
    if exponent == Fraction(1, 2):
        return _square_root(base)
    try:
        return Fraction(_IRRATIONAL.power(_decimal(base), _decimal(exponent)))
    except DecimalException:
        raise ToolError("the result is too big or too small") from None


def _square_root(value: Fraction) -> Fraction:
    if value < 0:
        raise ToolError("the square root of a negative number is not a real number")
    root = Fraction(math.isqrt(value.numerator), math.isqrt(value.denominator))
    return root if root * root == value else Fraction(_IRRATIONAL.sqrt(_decimal(value)))


def _round(value: Fraction, places: Fraction = Fraction(0)) -> Fraction:
    if places.denominator != 1 or abs(places) > 100:
        raise ToolError("round takes a whole number of places, at most 100")
    scale = Fraction(10) ** places.numerator
    nearest = math.floor(abs(value) * scale + Fraction(1, 2)) / scale
    return -nearest if value < 0 else nearest


# name -> (least and most arguments, function)
_FUNCTIONS: dict[str, tuple[int, int, Callable[..., Fraction]]] = {
    "sqrt": (1, 1, _square_root),
    "abs": (1, 1, abs),
    "round": (1, 2, _round),
    "min": (1, 100, lambda *values: min(values)),
    "max": (1, 100, lambda *values: max(values)),
}


def _call(name: str, arguments: list[Fraction]) -> Fraction:
    if name not in _FUNCTIONS:
        raise ToolError(f"the function {name[:40]!r} is not known; known are {', '.join(_FUNCTIONS)}")
    least, most, function = _FUNCTIONS[name]
    if not least <= len(arguments) <= most:
        raise ToolError(f"{name} takes {least} to {most} numbers" if most > least else f"{name} takes one number")
    return function(*arguments)


def _bits(value: Fraction) -> int:
    return max(value.numerator.bit_length(), value.denominator.bit_length())


def _bounded(value: Fraction) -> Fraction:
    if _bits(value) > MAX_BITS:
        raise ToolError(f"a number has more than {MAX_DIGITS} digits")
    return value


def _decimal(value: Fraction) -> Decimal:
    return _IRRATIONAL.divide(Decimal(value.numerator), Decimal(value.denominator))


def _write(value: Fraction) -> str:
    if value.denominator == 1:
        return str(value.numerator)
    digits = _rounded(value, EXACT_DIGITS)
    if Fraction(digits) == value:
        most = EXACT_DIGITS
    else:
        digits, most = _rounded(value, ROUNDED_DIGITS), ROUNDED_DIGITS
    return f"{digits:f}" if -most <= digits.adjusted() < most else f"{digits:e}"


def _rounded(value: Fraction, precision: int) -> Decimal:
    context = Context(prec=precision, rounding=ROUND_HALF_EVEN)
    return context.divide(Decimal(value.numerator), Decimal(value.denominator)).normalize(context)
