"""Numbers in words: nanoseconds, bytes and ratios as people read them."""

from __future__ import annotations

MEGABYTE = 1_000_000
"""Of a setting that ends in ``_mb``."""

_TIMES = ((1e9, "s"), (1e6, "ms"), (1e3, "us"), (1.0, "ns"))
_BYTES = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def time_text(time_ns: float) -> str:
    """A time in the unit that suits it, three digits.

    >>> time_text(1_234_567), time_text(40_000), time_text(0), time_text(-2.5e9), time_text(999_900)
    ('1.23 ms', '40 us', '0 ns', '-2.5 s', '1 ms')
    """
    return _in_unit(time_ns, _TIMES, "ns")


def bytes_text(num_bytes: float) -> str:
    """A size in the unit that suits it, three digits.

    >>> bytes_text(80 << 30), bytes_text(1536), bytes_text(12)
    ('80 GiB', '1.5 KiB', '12 B')
    """
    return _in_unit(num_bytes, _BYTES, "B")


def ratio_text(ratio: float) -> str:
    """A ratio as percent.

    >>> ratio_text(0.4812), ratio_text(0.05)
    ('48.1%', '5.0%')
    """
    return f"{ratio:.1%}"


def named_text(name: str, value: str | float | None) -> str:
    """A value by the unit that ends its name; "-" for None.

    >>> named_text("step_ns", 2e6), named_text("peak_bytes", 2048), named_text("idle_ratio", 0.5)
    ('2 ms', '2 KiB', '50.0%')
    >>> named_text("num_workers", 4), named_text("rank", None), named_text("calls", 2.5)
    ('4', '-', '2.5')
    """
    if value is None:
        return "-"
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if name.endswith("_ns"):
            return time_text(value)
        if name.endswith("_bytes"):
            return bytes_text(value)
        if name.endswith("_ratio"):
            return ratio_text(value)
        return f"{value:.6g}"
    return str(value)


def _in_unit(value: float, units: tuple[tuple[float, str], ...], least: str) -> str:
    for size, unit in units:
        if abs(value) >= 0.9995 * size:
            few = value / size
            return f"{few:.3g} {unit}" if abs(few) < 999.5 else f"{few:,.0f} {unit}"
    return f"{value:.3g} {least}"
