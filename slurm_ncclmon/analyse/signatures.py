"""Members of one collective that think it is something else than the others do."""

from __future__ import annotations

from collections import Counter

import numpy as np

from slurm_ncclmon.analyse.found import Found
from slurm_ncclmon.analyse.names import Names
from slurm_ncclmon.analyse.wording import comm_phrase
from slurm_ncclmon.probe.standing import Signature, Standing


def differing(comm: int, stand: Standing, names: Names) -> Found | None:
    """Members that call different things, or for which NCCL chose differently; None where all agree."""
    told = {int(stand.frames.rank[row]): stand.signature(row) for row in range(len(stand.frames))}
    known = {rank: signature for rank, signature in told.items() if signature is not None}
    arguments = {rank: signature[:4] for rank, signature in known.items()}
    choices = {rank: signature[4:6] for rank, signature in known.items()}
    values: dict[int, tuple[object, ...]] = dict(arguments)
    chosen = len(set(arguments.values())) < 2
    if chosen:
        values = dict(choices)
        if len(set(values.values())) < 2:
            return None
    usual, tie = _plurality(values)
    odd = np.array(sorted(rank for rank, value in values.items() if tie or value != usual), np.int64)
    others = len(values) - len(odd)
    whys = tuple(
        f"calls {_called(known[int(rank)], chosen)}, where {others} others call {_words(usual, chosen)}" for rank in odd
    )
    if tie:
        whys = tuple(f"calls {_called(known[int(rank)], chosen)}, others do not" for rank in odd)
    subject = (
        "NCCL runs it differently on them (NCCL_ALGO, NCCL_PROTO or a tuner set on some ranks only)"
        if chosen
        else "they differ"
    )
    covered = len(values) == int(stand.frames.size.max())
    return Found(
        kind="inconsistent_op",
        comm=comm,
        ranks=odd,
        whys=whys,
        confidence=0.5 if tie else 0.95 if covered else 0.7,
        evidence=(
            f"Probe frames of {len(values)} of {int(stand.frames.size.max())} ranks of {comm_phrase(names.reference(comm))}"
            " tell what each"
            f" calls as its collective number {stand.round}: {subject}."
            f" {'; '.join(f'{n} x {_words(value, chosen)}' for value, n in Counter(values.values()).most_common(4))}.",
        ),
        operation=str(usual[0]) if not chosen else known[int(odd[0])].function,
        round=stand.round,
        not_decidable=("Which of two equally large groups is wrong.",) if tie else (),
    )


def _plurality(values: dict[int, tuple[object, ...]]) -> tuple[tuple[object, ...], bool]:
    """The most frequent value, and whether another is as frequent."""
    ranked = Counter(values.values()).most_common(2)
    return ranked[0][0], len(ranked) > 1 and ranked[0][1] == ranked[1][1]


def _called(signature: Signature, chosen: bool) -> str:
    return _words(signature[4:6] if chosen else signature[:4], chosen)


def _words(value: tuple[object, ...], chosen: bool) -> str:
    if chosen:
        return f"{value[0]}/{value[1]}"
    function, datatype, count, root = value
    rooted = f", root {root}" if function in ("Broadcast", "Reduce") else ""
    return f"{function} of {count} {datatype}{rooted}"
