"""Groups of equal stacks: who is together, who is first, and what is said of it."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_ncclmon.evidence import phases
from slurm_ncclmon.evidence.merge import MOST_GROUPS, merge
from slurm_ncclmon.evidence.model import Frame, NodeReport
from slurm_ncclmon.evidence.outliers import divergence
from tests.evidence.make import IN_ALL_REDUCE, IN_LOADER, TRAIN, job, node, process


def test_the_odd_rank_is_first_and_the_majority_last() -> None:
    merged = merge(job(32, {13: process(13, IN_LOADER)}))
    assert [group.ranks for group in merged.groups] == [(13,), tuple(rank for rank in range(32) if rank != 13)]
    assert [group.phase for group in merged.groups] == [phases.DATA, phases.COLLECTIVE]
    assert merged.groups[0].divergence == "train_step (llm/train.py): line 390 here, line 398 there"
    assert merged.majority is merged.groups[-1]


def test_a_loop_in_c_is_one_place_wherever_it_is_caught() -> None:
    other = (Frame("clock_gettime", "/usr/lib/libc.so.6", 0, True), *IN_ALL_REDUCE[1:])
    assert len(merge(job(8, {3: process(3, other)})).groups) == 1


@pytest.mark.parametrize(
    ("odd", "phase"),
    [
        ({"state": "T"}, phases.STOPPED),
        ({"state": "D", "wchan": "nfs_wait_bit_killable"}, phases.KERNEL),
        ({"thread_states": {"S": 11, "D": 1}}, phases.KERNEL),
        ({"state": "Z", "frames": ()}, phases.EXITED),
        ({"state": "t", "tracer_pid": 77}, phases.TRACED),
        ({"frames": ()}, phases.NO_STACK),
    ],
)
def test_what_the_kernel_says_comes_before_stacks(odd: dict[str, object], phase: str) -> None:
    merged = merge(job(8, {5: process(5, **odd)}))  # type: ignore[arg-type]
    assert (merged.groups[0].ranks, merged.groups[0].phase) == ((5,), phase)


def test_other_evidence_comes_before_everything() -> None:
    nodes = job(8, {2: process(2, state="T"), 6: process(6, IN_LOADER)})
    merged = merge(nodes, behind=[6])
    assert merged.groups[0].ranks == (6,)
    assert merged.groups[0].behind == (6,)
    assert "behind, by other evidence" in merged.groups[0].reasons


def test_exited_tasks_are_a_group() -> None:
    merged = merge([node("n1", process(0), process(1)), node("n2", process(2), tasks=(2, 3), exited=(3,))])
    assert (merged.groups[0].ranks, merged.groups[0].phase, merged.groups[0].nodes) == ((3,), phases.EXITED, ("n2",))
    assert merged.ranks == 4


def test_silent_nodes_are_kept() -> None:
    silent = NodeReport(node="n9", answered=False, problems=("no answer",))
    assert merge([node("n1", process(0)), silent]).silent == (silent,)


def test_many_different_stacks_are_compared_more_coarsely() -> None:
    def at(line: int) -> tuple[Frame, ...]:
        return (*IN_ALL_REDUCE[:3], replace(TRAIN[0], line=line), *TRAIN[1:])

    merged = merge(job(64, {rank: process(rank, at(1000 + rank)) for rank in range(64)}))
    assert merged.level == 1
    assert len(merged.groups) == 1
    lines = merge(job(MOST_GROUPS, {rank: process(rank, at(rank)) for rank in range(MOST_GROUPS)}))
    assert (lines.level, len(lines.groups)) == (0, MOST_GROUPS)


def test_children_and_launchers_are_no_ranks() -> None:
    nodes = [node("n1", process(0), process(0, IN_LOADER, role="child"), process(None, IN_LOADER, role="launcher"))]
    assert merge(nodes).ranks == 1


def test_caution_where_all_wait() -> None:
    assert "name no rank" in merge(job(8, {})).caution
    on_gpu = (Frame("cudaStreamSynchronize", "libcudart.so.12", 0, True), *TRAIN)
    elsewhere = (on_gpu[0], Frame("clip", "/home/anna/llm/train.py", 50), *TRAIN[1:])
    victims = merge(job(8, {rank: process(rank, on_gpu if rank % 2 else elsewhere) for rank in range(8)}))
    assert "victims" in victims.caution
    assert not merge(job(8, {3: process(3, IN_LOADER)})).caution


def test_nothing_to_merge() -> None:
    merged = merge([])
    assert (merged.groups, merged.majority, merged.ranks) == ((), None, 0)


def test_divergence() -> None:
    assert divergence(TRAIN, TRAIN) == ""
    assert divergence((), TRAIN) == ""
    assert divergence((Frame("other", "x.py", 1),), TRAIN) == ""
    deeper = (Frame("load", "data.py", 5), *TRAIN)
    assert divergence(deeper, TRAIN) == "train_step (/home/anna/llm/train.py:398): load here, itself there"


STACKS = st.sampled_from([IN_ALL_REDUCE, IN_LOADER, TRAIN, ()])


@given(st.lists(st.tuples(STACKS, st.sampled_from("SRDTZ")), max_size=40), st.randoms(use_true_random=False))
def test_every_rank_is_in_one_group_and_order_of_arrival_does_not_matter(
    ranks: list[tuple[tuple[Frame, ...], str]], shuffle: random.Random
) -> None:
    processes = [process(rank, frames, state=state) for rank, (frames, state) in enumerate(ranks)]
    nodes = [node(f"n{rank}", one) for rank, one in enumerate(processes)]
    merged = merge(nodes)
    assert sorted(rank for group in merged.groups for rank in group.ranks) == list(range(len(ranks)))
    assert sum(group.size for group in merged.groups) == merged.ranks == len(ranks)
    assert [group.score for group in merged.groups] == sorted((group.score for group in merged.groups), reverse=True)
    shuffle.shuffle(nodes)
    again = merge(nodes)
    assert [(group.ranks, group.phase, group.frames) for group in again.groups] == [
        (group.ranks, group.phase, group.frames) for group in merged.groups
    ]
