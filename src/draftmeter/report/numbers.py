"""How figures are written: one place for each kind. None is ``-``, never 0.

The digits of a figure follow from its interval: the last digit shown is worth at most the
interval's half-width, so that no digit is shown that the measurement does not know.
Without an interval: three significant digits. Ratios have two decimals at least, as they are
compared with each other and with 1.
"""

from __future__ import annotations

import math
from typing import TypeGuard

NONE = "-"
MAX_DECIMALS = 4


def number(value: float | None, unit: str = "", decimals: int | None = None) -> str:
    """``131``, ``8.31``, ``24,576``, ``61 ms``; three significant digits unless told otherwise."""
    if not _known(value):
        return NONE
    places = _significant(value, 3) if decimals is None else decimals
    return _fixed(value, places) + _suffix(unit)


def with_interval(
    value: float | None, low: float | None = None, high: float | None = None, unit: str = ""
) -> str:
    """``1.85x (1.81-1.90)``, ``131 tok/s (129-133)``; no brackets where there is no interval."""
    return _joined(*parts(value, low, high, unit))


def parts(
    value: float | None, low: float | None = None, high: float | None = None, unit: str = ""
) -> tuple[str, str | None]:
    """A figure and its interval, as two texts: ``("131 tok/s", "129-133")``; unit x is a ratio."""
    if unit == "x":
        return ratio_parts(value, low, high, unit)
    if not _known(value):
        return NONE, None
    if not (_known(low) and _known(high)):
        return number(value, unit), None
    places = decimals_for(value, low, high)
    return number(value, unit, places), _range(low, high, places)


def ratio_parts(
    value: float | None, low: float | None = None, high: float | None = None, unit: str = "x"
) -> tuple[str, str | None]:
    """A ratio and its interval: ``("1.85x", "1.81-1.90")``.

    A bound that rounds to 1 without being it is written ``>1.00``: the verdict hangs on it.
    """
    if not _known(value):
        return NONE, None
    if not (_known(low) and _known(high)):
        return number(value, unit, max(2, _significant(value, 2))), None
    places = max(2, decimals_for(value, low, high))
    return number(value, unit, places), f"{_side(low, places)}-{_side(high, places)}"


def ratio_with_interval(
    value: float | None, low: float | None = None, high: float | None = None, unit: str = ""
) -> str:
    """A ratio that is no speedup, such as a step cost: ``1.70 (1.66-1.74)``."""
    return _joined(*ratio_parts(value, low, high, unit))


def decimals_for(value: float, low: float, high: float) -> int:
    """Decimals at which the last digit is worth at most the interval's half-width."""
    half_width = (high - low) / 2
    if half_width <= 0:
        return _significant(value, 3)
    places = math.ceil(-math.log10(half_width))
    return min(max(places, _significant(value, 1), 0), MAX_DECIMALS)


def percent(rate: float | None, decimals: int | None = None) -> str:
    """A share as ``71 %``; ``4.2 %`` below ten; never ``0 %`` or ``100 %`` unless it is."""
    if not _known(rate):
        return NONE
    if decimals is None:
        decimals = 1 if 0 < rate < 0.0995 or 0.995 <= rate < 1 else 0
    text = _fixed(100 * rate, decimals)
    if rate > 0 and float(text) == 0:
        return "<0.1 %" if decimals else "<1 %"
    if rate < 1 and float(text) == 100:
        return ">99.9 %" if decimals else ">99 %"
    return f"{text} %"


def percent_parts(
    rate: float | None, low: float | None = None, high: float | None = None
) -> tuple[str, str | None]:
    """A share and its interval, as two texts: ``("71 %", "69-74")``."""
    if not (_known(rate) and _known(low) and _known(high)) or high <= low:
        return percent(rate), None
    half_width = 100 * (high - low) / 2
    places = min(max(math.ceil(-math.log10(half_width)), 0), 2)
    return percent(rate, places), _range(100 * low, 100 * high, places)


def percent_with_interval(
    rate: float | None, low: float | None = None, high: float | None = None
) -> str:
    """``71 % (69-74)``."""
    return _joined(*percent_parts(rate, low, high))


def duration(seconds: float | None) -> str:
    """``45 s``, ``2 min 5 s``, ``1 h 20 min``."""
    if not _known(seconds):
        return NONE
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"


def count(n: int, one: str, many: str | None = None) -> str:
    """``1 request``, ``12 requests``."""
    return f"{n:,} {one if n == 1 else many or one + 's'}"


def _known(value: float | None) -> TypeGuard[float]:
    return value is not None and math.isfinite(value)


def _joined(figure: str, interval: str | None) -> str:
    return figure if interval is None else f"{figure} ({interval})"


def _range(low: float, high: float, places: int) -> str:
    joint = " to " if low < 0 else "-"
    return f"{_fixed(low, places)}{joint}{_fixed(high, places)}"


def _side(bound: float, places: int) -> str:
    """A bound of a ratio, with the side of 1 on which it lies where rounding would hide it."""
    text = _fixed(bound, places)
    if bound == 1 or text != _fixed(1, places):
        return text
    return f">{text}" if bound > 1 else f"<{text}"


def _fixed(value: float, places: int) -> str:
    text = f"{value:,.{places}f}"
    return text.removeprefix("-") if float(text.replace(",", "")) == 0 else text


def _suffix(unit: str) -> str:
    return unit if unit in ("", "x") else f" {unit}"


def _significant(value: float, digits: int) -> int:
    """Decimals that show ``digits`` significant digits of ``value``."""
    if value == 0:
        return 0
    return min(max(digits - 1 - math.floor(math.log10(abs(value))), 0), MAX_DECIMALS)
