"""Sizes as people read them."""


def in_words(count_bytes: float) -> str:
    """Write a size in three digits or so: ``12.6 GiB``."""
    value = float(count_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def duration_in_words(seconds: float) -> str:
    """Write a duration: ``45 s``, ``12 min``, ``1 h 5 min``."""
    if seconds < 99.5:
        return f"{max(seconds, 1):.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"


def download_time(count_bytes: int) -> str:
    """Write the time that a download takes at 1 Gbit/s."""
    return duration_in_words(8 * count_bytes / 1e9)


def num_files(count: int) -> str:
    """Write a number of files: ``1 file``, ``2 files``."""
    return f"{count} file" if count == 1 else f"{count} files"


def count_in_words(count: float) -> str:
    for unit, size in (("billion", 1e9), ("million", 1e6), ("thousand", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f}"
