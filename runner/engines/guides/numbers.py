"""Numbers of JSON schemas, as llguidance reads them.

It reads bounds as 64-bit floats, and ranges of integers as those of int64: it rounds bounds beyond 2^53, and
clamps or refuses others. So each bound is moved inwards to the next number that it reads as it is: an output
never leaves the schema's range.
"""

import math
from collections.abc import Mapping
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from typing import Any

from errors.requests import InvalidGuide

BOUNDS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
Bound = tuple[int | float, bool]
"""A number, and whether it is excluded."""

_MAX_INT, _MIN_INT = (1 << 63) - 1, -(1 << 63) + 1024
"""Integers that llguidance reads exactly; the least is the first float above that of int64."""
_EXACT = 1 << 53
"""Limit up to which each integer is a float."""
_MAX_NUMBER = 9 * 10**18
"""Largest number that llguidance reads exactly if numbers need not be integers."""
_NEEDS_BOTH = 10**17
"""Limit beyond which llguidance needs a bound on the other side, too."""
_MAX_READ_DIGITS = 15
"""Digits of a number that is no integer: llguidance reads further ones wrongly."""
_LEAST_NUMBER = 1e-50
"""Smallest bound: those nearer to 0 have too many digits."""
_MAX_DIGITS = 40
"""Digits shown of a number."""


def exact_values(value: Any, place: str, *, is_integer: bool = False) -> Any:
    """Return the values of ``const`` and ``enum``, with their numbers as llguidance reads them.

    ``is_integer``: numbers are integers. llguidance clamps them to int64, or crashes. Raises InvalidGuide.
    """
    if isinstance(value, list):
        return [exact_values(each, place, is_integer=is_integer) for each in value]
    if isinstance(value, dict):
        return {name: exact_values(each, place) for name, each in value.items()}
    if is_integer and isinstance(value, (int, float)) and not _MIN_INT <= value <= _MAX_INT:
        raise _refused(
            place, value, f"integers beyond {_MAX_INT if value > 0 else _MIN_INT} can't be followed"
        )
    if isinstance(value, float):
        return value or 0  # It reads no -0.0.
    if isinstance(value, bool) or not isinstance(value, int) or value == _MAX_INT:
        return value
    if _MIN_INT <= value == _next_float(value, 1) <= _MAX_INT:
        return value
    if abs(value) > _MAX_INT and _digits(_next_float(value, 1)) == value:
        return float(value)
    raise _refused(place, value, "such an integer beyond 2^53 can't be followed exactly")


def with_bounds(schema: Mapping[str, Any], place: str) -> dict[str, Any]:
    others = {key: value for key, value in schema.items() if key not in BOUNDS}
    given = {key: schema[key] for key in BOUNDS if key in schema}
    if any(not _is_bound(key, value) for key, value in given.items()):
        return {**schema}  # llguidance names it.
    if not has_numbers(schema, "number", "integer"):
        return others  # They have no effect.
    is_number = has_numbers(schema, "number")
    # NOTE: in draft 4, ``true`` says that the bound itself is excluded.
    low = _strictest(given.get("minimum"), given.get("exclusiveMinimum"), 1)
    high = _strictest(given.get("maximum"), given.get("exclusiveMaximum"), -1)
    return {**others, **_range(low, high, is_integer=not is_number, place=place)}


def has_numbers(schema: Mapping[str, Any], *kinds: str) -> bool:
    """Tell whether the schema's type is one of ``kinds``, or there is none."""
    types = schema.get("type", "number")
    return any(kind in (types if isinstance(types, list) else (types,)) for kind in kinds)


def _is_bound(key: str, value: object) -> bool:
    return isinstance(value, (int, float)) and (key.startswith("exclusive") or not isinstance(value, bool))


def _strictest(bound: int | float | None, excluded: int | float | bool | None, sign: int) -> Bound | None:
    if isinstance(excluded, bool):
        return None if bound is None else (bound, excluded)
    found: list[Bound] = [
        (value, is_out) for value, is_out in ((bound, False), (excluded, True)) if value is not None
    ]
    return max(found, key=lambda each: (sign * each[0], each[1]), default=None)


def _range(low: Bound | None, high: Bound | None, *, is_integer: bool, place: str) -> dict[str, Any]:
    least, most = (_MIN_INT, _MAX_INT) if is_integer else (-_MAX_NUMBER, _MAX_NUMBER)
    beyond = (
        low if low is not None and low[0] > most else high if high is not None and high[0] < least else None
    )
    if beyond is not None:
        raise _refused(
            place, beyond[0], f"bounds beyond {most if beyond[0] > 0 else least} can't be followed"
        )
    if low is None and high is not None and high[0] < -_NEEDS_BOTH:
        low = (least, False)
    if high is None and low is not None and low[0] > _NEEDS_BOTH:
        high = (most, False)
    found = {}
    if low is not None:
        value, is_out = _inward(max(low, (least, False)), 1, is_integer=is_integer)
        found["exclusiveMinimum" if is_out else "minimum"] = value
    if high is not None:
        value, is_out = _inward(high if high[0] <= most else (most, False), -1, is_integer=is_integer)
        found["exclusiveMaximum" if is_out else "maximum"] = value
    if (
        low is not None
        and high is not None
        and low[0] <= high[0]
        and found.get("minimum", low[0]) > found.get("maximum", high[0])
    ):
        raise _refused(place, low[0], f"no number from it to {high[0]} can be followed exactly")
    return found


def _inward(bound: Bound, sign: int, *, is_integer: bool) -> Bound:
    """Return the bound, or the next one inwards (up, if ``sign`` is 1) that llguidance reads exactly."""
    value, is_out = bound
    if is_integer:
        whole = math.ceil(value) if sign > 0 else math.floor(value)
        whole = whole + sign if is_out and whole == value else whole
        return (whole if whole == _MAX_INT else int(_next_float(whole, sign))), False
    if 0 < abs(value) < _LEAST_NUMBER:
        return (sign * _LEAST_NUMBER if sign * value > 0 else 0), False
    if abs(value) < _EXACT:
        if value == int(value):
            return int(value), is_out  # It reads the last digit of 9007199254740991.0 wrongly.
        rounding = ROUND_CEILING if sign > 0 else ROUND_FLOOR
        kept = Context(_MAX_READ_DIGITS, rounding).create_decimal(repr(float(value)))
        return bound if float(kept) == value else (float(kept), False)
    # NOTE: llguidance takes the digits that Python shows, which may be fewer than those of the value.
    exact, read = int(value), _next_float(int(value), sign)
    while sign * _digits(read) < sign * exact:
        read = math.nextafter(read, sign * math.inf)
    return int(read), is_out and _digits(read) == exact


def _next_float(value: int, sign: int) -> float:
    """Return the value, or the next float up, if ``sign`` is 1, or down."""
    try:
        read = float(value)
    except OverflowError:
        return math.inf
    return math.nextafter(read, sign * math.inf) if sign * read < sign * value else read


def _digits(number: float) -> Decimal:
    return Decimal(repr(number))


def _refused(place: str, value: object, reason: str) -> InvalidGuide:
    shown = str(value)[:_MAX_DIGITS]
    return InvalidGuide(guide_type="json_schema", reason=f"at {place}: {shown}: {reason}")
