"""The reader's dtypes are what the compiler makes of frame.h."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np

from slurm_ncclmon.probe import layout

from .conftest import ROOT

STRUCTS = {
    "op": layout.OP,
    "channel": layout.CHANNEL,
    "flow": layout.FLOW,
    "frame": layout.FRAME,
    "header": layout.HEADER,
}


def test_offsets_and_sizes(tmp_path: Path) -> None:
    lines = ["#include <stddef.h>", "#include <stdio.h>", '#include "frame.h"', "int main(void) {"]
    expected = []
    for name, dtype in STRUCTS.items():
        lines.append(f'printf("%zu\\n", sizeof(struct ncclmon_{name}));')
        expected.append(dtype.itemsize)
        for field in dtype.names or ():
            lines.append(f'printf("%zu\\n", offsetof(struct ncclmon_{name}, {field}));')
            expected.append(dtype.fields[field][1])  # type: ignore[index]
    source = tmp_path / "offsets.c"
    source.write_text("\n".join([*lines, "return 0; }"]))
    subprocess.run(["cc", f"-I{ROOT / 'probe'}", source, "-o", tmp_path / "offsets"], check=True, timeout=60)
    printed = subprocess.run([tmp_path / "offsets"], check=True, timeout=60, stdout=subprocess.PIPE, text=True).stdout
    assert [int(line) for line in printed.split()] == expected


def test_the_module_is_made_from_the_header() -> None:
    made = subprocess.run(
        ["python3", ROOT / "probe/layout.py", ROOT / "probe/frame.h"],
        check=True,
        timeout=60,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout
    assert made == Path(layout.__file__).read_text()


def test_a_frame_is_no_larger_than_ccl_ds() -> None:
    assert layout.FRAME.itemsize <= 1184
    assert np.dtype(layout.OP).itemsize == 64
