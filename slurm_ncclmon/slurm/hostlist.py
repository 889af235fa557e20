"""Slurm's folded node lists, and folded lists of numbers: n[1-4,7] and 0-3,7."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from slurm_ncclmon.errors import SlurmError

_LAST_NUMBER = re.compile(r"(.*?)([0-9]+)([^0-9]*)")


def expand(folded: str) -> tuple[str, ...]:
    """Names of a folded list, in its order: `n[01-03,7]` is n01 n02 n03 n7. Raises SlurmError when it is not one."""
    return tuple(name for part in _split(folded) for name in _expand_one(part))


def _split(folded: str) -> Iterator[str]:
    depth, start = 0, 0
    for position, letter in enumerate(folded):
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 0:
            yield folded[start:position]
            start = position + 1
    if depth:
        raise SlurmError(f"'{folded}' is not a node list: a bracket is missing")
    if folded[start:]:
        yield folded[start:]


def _expand_one(part: str) -> Iterator[str]:
    head, bracket, rest = part.partition("[")
    if not bracket:
        yield part
        return
    inside, _, tail = rest.partition("]")
    for item in inside.split(","):
        low, dash, high = item.partition("-")
        if not low.isdigit() or (dash and not high.isdigit()):
            raise SlurmError(f"'{part}' is not a node list: '{item}' is no number or range")
        for number in range(int(low), int(high or low) + 1):
            for end in _expand_one(tail):
                yield f"{head}{number:0{len(low)}d}{end}"


def fold_numbers(numbers: Iterable[int]) -> str:
    """`0-3,7` for 0 1 2 3 7; two neighbours are written as a range too."""
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in _runs(sorted(set(numbers))))


def fold(names: Iterable[str]) -> str:
    """`n[1-4,7],login` for n1 n2 n3 n4 n7 login. The last number of a name is the one folded, with its leading zeros."""
    parts = [(name, _LAST_NUMBER.fullmatch(name)) for name in dict.fromkeys(names)]
    padded = {(m[1], m[3], len(m[2])) for _, m in parts if m and m[2].startswith("0")}
    families: dict[tuple[str, str, int], list[int]] = {}
    alone: list[str] = []
    for name, match in parts:
        if not match:
            alone.append(name)
            continue
        head, digits, tail = match.groups()
        # n9 and n10 fold together, n09 and n10 too; n9 and n09 are two nodes.
        width = len(digits) if (head, tail, len(digits)) in padded else 0
        families.setdefault((head, tail, width), []).append(int(digits))
    folded = [_fold_family(*key, numbers) for key, numbers in families.items()]
    return ",".join(folded + alone)


def _fold_family(head: str, tail: str, width: int, numbers: list[int]) -> str:
    runs = [
        f"{low:0{width}d}" if low == high else f"{low:0{width}d}-{high:0{width}d}"
        for low, high in _runs(sorted(numbers))
    ]
    if len(runs) == 1 and "-" not in runs[0]:
        return f"{head}{runs[0]}{tail}"
    return f"{head}[{','.join(runs)}]{tail}"


def _runs(ordered: list[int]) -> Iterator[tuple[int, int]]:
    start = 0
    for position in range(1, len(ordered) + 1):
        if position == len(ordered) or ordered[position] != ordered[position - 1] + 1:
            yield ordered[start], ordered[position - 1]
            start = position
