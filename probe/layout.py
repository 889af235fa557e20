"""Turns frame.h into the reader's dtypes: `layout.py frame.h > slurm_ncclmon/probe/layout.py`."""

from __future__ import annotations

import pathlib
import re
import sys

STRUCT = re.compile(r"struct (\w+) \{\n(.*?)\n\};", re.DOTALL)
FIELD = re.compile(r"(?:u?int(\d+)_t|struct (\w+)) (\w+)(?:\[(\w+)\])?;")
NUMBER = re.compile(r"^#define NCCLMON_(\w+) (0x[0-9a-f]+|\d+)", re.MULTILINE)
ENUM = re.compile(r"^enum (\w+) \{(.*?)\};", re.MULTILINE | re.DOTALL)
NAMES = re.compile(r"^#define NCCLMON_(\w+S)\(X\)((?:.*\\\n)*.*)", re.MULTILINE)
COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)


def main(path: str) -> None:
    """Print the module for the header at `path`."""
    text = COMMENT.sub("", pathlib.Path(path).read_text(encoding="utf-8"))
    numbers = {name: int(value, 0) for name, value in NUMBER.findall(text)}
    print('"""What frame.h defines, for numpy. Made from probe/frame.h: change that, then `make -C probe layout`."""')
    print("\nfrom __future__ import annotations\n\nimport numpy as np\n")
    for name, value in numbers.items():
        print(f"{name} = {value}")
    for name, body in NAMES.findall(text):
        names = re.findall(r'"([^"]*)"', body)
        print(f"\n{name} = (\n" + "".join(f'    "{each}",\n' for each in names) + ")")
    for _, body in ENUM.findall(text):
        constants(body)
    for name, body in STRUCT.findall(text):
        struct(name, body, numbers)


def constants(body: str) -> None:
    """Print the members of one enumeration; those made of macros are already printed as names."""
    value = -1
    lines = []
    for item in body.split(","):
        member = re.fullmatch(r"\s*([A-Z_]+)(?: = (\d+))?\s*", item)
        if member:
            value = int(member[2]) if member[2] else value + 1
            lines.append(f"{member[1]} = {value}")
    if lines:
        print("\n" + "\n".join(lines))


def struct(name: str, body: str, numbers: dict[str, int]) -> None:
    """Print one struct as an aligned dtype."""
    print(f"\n{name.replace('ncclmon_', '').upper()} = np.dtype(\n    [")
    for field in re.finditer(FIELD, body):
        bits, nested, label, length = field.groups()
        signed = "i" if field[0].startswith("int") else "u"
        kind = nested.replace("ncclmon_", "").upper() if nested else f'"<{signed}{int(bits) // 8}"'
        if length is None:
            print(f'        ("{label}", {kind}),')
        elif bits == "8":
            print(f'        ("{label}", "S{length}"),')
        else:
            print(f'        ("{label}", {kind}, ({numbers.get(length.replace("NCCLMON_", ""), length)},)),')
    print("    ],\n    align=True,\n)")


if __name__ == "__main__":
    main(sys.argv[1])
