"""Jobs without a communicator of all ranks: several meshes, each of which RAS answers for alone.

The nodes of a test cluster are one machine, where tasks of equal number on different nodes listen at one port. So here, other
than on a real cluster, answers of the second node's meshes come in between; the monitor asks again.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cluster.watching import Watched
from tests.lab.user import PYTHON, TRAIN, User

pytestmark = pytest.mark.cluster


def start_pairs(user: User, culprit: int, duration: int) -> Watched:
    """Four pairs of ranks, two on each of two nodes, that share nothing; one rank of one pair gets lost."""
    arguments = f"--groups tp --tp 2 --group tp --fault not_entered --rank {culprit} --step 50 --duration {duration}"
    job = user.sbatch(
        f"srun {PYTHON} {TRAIN} {arguments}",
        "-N2",
        "--ntasks-per-node=4",
        "--nccl-hang-detect=observe,confirm=12s,interval=1s",
    )
    return Watched(user, job)


def polls(job: Watched) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (job.folder / "polls.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == "poll" and line["ok"]]


@pytest.mark.parametrize("culprit", [0, 3])
def test_each_mesh_of_the_first_node_is_seen(user: User, culprit: int) -> None:
    job = start_pairs(user, culprit, duration=100)
    incident = job.wait_until_confirmed()
    assert [culprit["global_rank"] for culprit in incident["culprits"]] == [culprit]
    assert f"rank {culprit} on n1" in " ".join(job.report.split())
    notes = [note[0] for poll in polls(job)[-5:] for note in poll.get("notes", ())]
    assert "not_seen" not in notes


def test_nodes_that_no_answer_covers_are_named(user: User) -> None:
    job = start_pairs(user, culprit=6, duration=35)
    job.wait_for_end()
    assert "n2" in job.report
