"""What a Python rank plays is what the modelled job shows of the same fault."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from slurm_ncclmon.probe.frame import Frames
from slurm_ncclmon.probe.layout import CHANNELS, WAIT_RECV_NETWORK
from slurm_ncclmon.probe.standing import ENQUEUED, STARTED, standing

from .conftest import ROOT, Probe

RANKS, CULPRIT = 4, 1
SCRIPT = """
import sys
sys.path.insert(0, sys.argv[1])
from tests.lab.probe_caller import from_environment
caller = from_environment()
rank, link = int(sys.argv[2]), sys.argv[3] == "link_stop"
comm = caller.communicator(0xABC, rank, 4, 2, "world")
for step in range(6):
    operation = comm.enqueue("AllReduce", 1 << 20)
    comm.begin(operation, kernel=step < 5 or link or rank != 1)
    if step < 5:
        comm.end(operation)
comm.stuck(operation, 1, link)
"""


def played(probe: Probe, fault: str) -> Frames:
    for rank in range(RANKS):
        environment = {
            "NCCLMON_PROBE_DIR": str(probe.folder),
            "NCCL_PROFILER_PLUGIN": str(probe.plugin),
            "RANK": str(rank),
        }
        command = [sys.executable, "-c", SCRIPT, str(ROOT), str(rank), fault]
        subprocess.run(command, env={**os.environ, **environment}, check=True, timeout=60)
    return probe.frames().of(0xABC)


@pytest.mark.parametrize("fault", ["gpu_stall", "link_stop"])
def test_stuck_ring(probe: Probe, fault: str) -> None:
    python = played(probe, fault)
    found = standing(python, 0xABC)
    assert found is not None
    stuck = STARTED if fault == "link_stop" else ENQUEUED
    assert found.stage.tolist() == [STARTED, stuck, STARTED, STARTED]
    assert python.global_rank.tolist() == list(range(RANKS))
    model = Probe(probe.programs, probe.plugin, probe.folder.with_name("model"))
    model.run("job", f"fault={fault}", "interface=5", "seconds=2", f"rank={CULPRIT}", "operations=6")
    expected = model.frames()
    expected = expected.of(int(expected.communicator[0]))
    assert python.send.wait[:, :2].tolist() == expected.send.wait[:, :2].tolist()
    assert python.receive.wait[:, :2].tolist() == expected.receive.wait[:, :2].tolist()
    assert (python.receive.wait == WAIT_RECV_NETWORK).sum() == (4 if fault == "link_stop" else 3) * 2
    for mine, theirs in ((python.send, expected.send), (python.receive, expected.receive)):
        first = mine.done.min(axis=0, keepdims=True), theirs.done.min(axis=0, keepdims=True)
        assert ((mine.done - first[0]) == (theirs.done - first[1])).all()
        assert mine.peer.shape == (RANKS, CHANNELS)
        assert mine.peer.tolist() == theirs.peer.tolist()
