"""Text that is safe to print: names of files, functions and processes are the job's own, and a terminal obeys what is in them."""

from __future__ import annotations


def plain(text: str) -> str:
    """`text` with every control character but newline and tab shown as an escape, and with what is no valid Unicode escaped."""
    whole = text.encode("utf-8", "backslashreplace").decode("utf-8")
    if whole.isprintable():
        return whole
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in whole)
