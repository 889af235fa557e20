"""Golden texts of groups, tree and JSON. NCCLMON_GOLDEN=write makes them anew."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from slurm_ncclmon.evidence.merge import Merged, merge
from slurm_ncclmon.evidence.model import Attempt, Frame, NodeReport
from slurm_ncclmon.evidence.render import render_stacks, render_text, to_json
from slurm_ncclmon.evidence.tree import render_tree
from slurm_ncclmon.verdict import Culprit, Verdict
from tests.evidence.make import IN_LOADER, TRAIN, job, process

GOLDEN = Path(__file__).parent / "golden"


def case(name: str) -> Merged:
    """The jobs whose pictures are kept."""
    if name == "one_odd":
        return merge(
            job(32, {13: process(13, IN_LOADER, state="D", wchan="nfs_wait_bit_killable", cpu_rate=0.0, moved=None)})
        )
    if name == "everything":
        odd = {
            2: process(2, IN_LOADER, moved=True, write_rate=3.5e6),
            5: process(
                5,
                (),
                cpu_rate=0.99,
                state="R",
                attempts=(Attempt("native", 1, 0.01, "Permission Denied"),),
                note="py-spy may not read it",
                moved=None,
            ),
            9: process(9, TRAIN, state="T", moved=None),
            11: process(11, (Frame("save", "/x/torch/serialization.py", 9), *TRAIN), write_rate=2e9, moved=True),
        }
        nodes = job(16, odd)
        nodes[1] = NodeReport(
            **{**vars(nodes[1]), "processes": nodes[1].processes[:-1], "tasks": tuple(range(8, 16)), "exited": (15,)}
        )
        silent = NodeReport(
            node="n3", answered=False, tasks=(16, 17), problems=("no answer in time", "Slurm says that n3 is down*")
        )
        return merge([*nodes, silent], behind=[2])
    if name == "all_wait":
        return merge(job(64, {}))
    raise AssertionError(name)


@pytest.mark.parametrize("name", ["one_odd", "everything", "all_wait"])
@pytest.mark.parametrize("kind", ["txt", "tree", "json"])
def test_golden(name: str, kind: str) -> None:
    merged = case(name)
    text = {
        "txt": lambda: render_text(merged),
        "tree": lambda: render_tree(merged),
        "json": lambda: json.dumps(to_json(merged), indent=1) + "\n",
    }[kind]()
    path = GOLDEN / f"{name}.{kind}"
    if os.environ.get("NCCLMON_GOLDEN") == "write":
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def test_a_large_job_still_fits_on_a_screen_or_two() -> None:
    def at(line: int) -> tuple[Frame, ...]:
        return (Frame(f"f{line}", f"/home/x/m{line}.py", line), *TRAIN)

    text = render_text(merge(job(4096, {rank: process(rank, at(rank)) for rank in range(0, 4096, 64)})))
    assert len(text.splitlines()) < 260
    assert max(map(len, text.splitlines())) < 400


def test_the_culprit_of_a_verdict_is_first() -> None:
    nodes = job(8, {2: process(2, state="T"), 6: process(6, IN_LOADER)})
    culprit = Culprit(rank=6, global_rank=6, host="n1", pid=1006, cuda_dev=None, why="one behind")
    verdict = Verdict("i", "confirmed", "H1", "not_entered", None, "AllReduce", 3, (culprit,), 0.9, 60.0)
    assert render_stacks(nodes, [verdict]).splitlines()[2].startswith("[1] rank 6 on n1: loading data")
