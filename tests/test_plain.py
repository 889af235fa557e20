from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from slurm_ncclmon.plain import plain


def test_text_stays_and_escapes_are_shown() -> None:
    assert plain("rank 3 on n2: überall …\n\tline") == "rank 3 on n2: überall …\n\tline"
    assert plain("\x1b[2J\x1b]0;PWN\x07\r") == "\\x1b[2J\\x1b]0;PWN\\x07\\r"
    assert plain("caf\udce9") == "caf\\udce9"


@given(st.text(st.characters(exclude_categories=())))
def test_whatever_comes_is_printable_and_can_be_encoded(text: str) -> None:
    shown = plain(text)
    assert all(c.isprintable() or c in "\n\t" for c in shown)
    shown.encode()
