"""Golden reports: what a person reads. `NCCLMON_REGOLD=1 pytest tests/report` writes them anew; read the difference."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from slurm_ncclmon.report.files import stack_files, verdict_document, write_report
from slurm_ncclmon.report.sentence import headline
from slurm_ncclmon.report.text import comment_text, render_report
from slurm_ncclmon.slurm.hostlist import fold_numbers as ranks_text
from slurm_ncclmon.verdict import Culprit, Edge
from tests.report.cases import CASES, NOT_ENTERED

GOLDEN = Path(__file__).parent.parent / "data" / "report"


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")


@pytest.mark.parametrize("name", CASES)
def test_report_reads_as_agreed(name: str) -> None:
    text = render_report(CASES[name], lambda nodes, verdicts: "(stacks)")
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("NCCLMON_REGOLD"):
        path.write_text(text)
    assert text == path.read_text()


def test_the_first_line_says_which_rank_where_and_what() -> None:
    assert headline(NOT_ENTERED) == (
        "HANG H1: rank 3 on n2 (pid 4003, GPU 1) did not enter AllReduce number 21 of communicator 0x1f0e (world, 8 ranks);"
        " 7 other ranks have waited for 5 min 1 s"
    )


def test_several_culprits_and_a_link_read_as_sentences() -> None:
    ends = tuple(Culprit(rank, rank, f"n{rank // 2 + 1}", 4000 + rank, rank % 2, "an end") for rank in (3, 4))
    torn = replace(NOT_ENTERED, cls="H3", kind="in_collective", culprits=ends, victims=6)
    where = "AllReduce number 21 of communicator 0x1f0e (world, 8 ranks)"
    assert headline(torn) == (
        f"HANG H3: rank 3 on n2; rank 4 on n3 are where {where} stopped moving; 6 other ranks have waited for 5 min 1 s"
    )
    assert headline(replace(torn, edges=(Edge(3, 4, "sent, not arrived"),))) == (
        f"HANG H3: data from rank 3 on n2 (pid 4003, GPU 1) to rank 4 on n3 (pid 4004, GPU 0) does not arrive in {where};"
        " 6 other ranks have waited for 5 min 1 s"
    )
    stalled = replace(torn, kind="device_not_started", culprits=ends[:1])
    assert "launched AllReduce number 21" in headline(stalled)
    assert "but its GPU never started it" in headline(stalled)


def test_comment_names_class_culprit_and_report_on_one_short_line() -> None:
    text = comment_text(NOT_ENTERED, "/home/user/ncclmon-12.0/report.txt")
    assert text.startswith("ncclmon: H1 not_entered: rank 3 on n2")
    assert text.endswith("report /home/user/ncclmon-12.0/report.txt")
    many = replace(
        NOT_ENTERED, culprits=tuple(replace(NOT_ENTERED.culprits[0], host="n" * 60 + str(i)) for i in range(99))
    )
    assert len(comment_text(many, "/r")) <= 300


@pytest.mark.parametrize(
    ("ranks", "text"), [((), ""), ((3,), "3"), ((2, 1, 0), "0-2"), ((0, 1, 2, 5, 7, 8), "0-2,5,7-8"), ((4, 4), "4")]
)
def test_ranks_are_folded(ranks: tuple[int, ...], text: str) -> None:
    assert ranks_text(ranks) == text


def test_files_are_whole_and_named_by_rank(tmp_path: Path) -> None:
    case = CASES["not_entered"]
    path = write_report(tmp_path, case, "text\n")
    assert path.read_text() == "text\n"
    assert json.loads((tmp_path / "verdict.json").read_text()) == verdict_document(case)
    assert sorted(file.name for file in (tmp_path / "stacks").iterdir()) == ["0.txt", "1.txt", "2.txt", "3.txt"]
    assert "wait_for_batch (/home/user/train/data.py:88)" in stack_files(case.nodes)["3"]
    assert "Permission denied (os error 13)" in stack_files(case.nodes)["0"]
    assert not list(tmp_path.rglob("*.new"))
