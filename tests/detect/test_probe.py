"""What is said of ranks whose NCCL loads another profiler plugin."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slurm_ncclmon.config import Settings
from slurm_ncclmon.detect.probe import taken
from slurm_ncclmon.evidence.model import ProcessReport
from tests.report.cases import process

THEIRS = {"NCCL_PROFILER_PLUGIN": "/opt/inspector/libnccl-profiler.so"}
OURS = {
    "NCCL_PROFILER_PLUGIN": "/opt/ncclmon/libnccl-profiler-ncclmon.so",
    "NCCLMON_PROBE_DIR": "/dev/shm/ncclmon-1-2.0",
}


def ranks(environment: dict[str, str], role: str = "rank") -> list[ProcessReport]:
    return [replace(process(rank, (), "no_stack"), environment=environment, role=role) for rank in (0, 1)]


def test_a_plugin_of_the_users_own_is_named_with_the_way_out() -> None:
    said = taken(ranks(THEIRS), Settings()) or ""
    assert THEIRS["NCCL_PROFILER_PLUGIN"] in said
    assert "NCCLMON_CHAIN_PLUGIN" in said


@pytest.mark.parametrize("environment", [{}, OURS])
def test_nothing_is_said_where_nothing_is_taken(environment: dict[str, str]) -> None:
    assert taken(ranks(environment), Settings()) is None


def test_nothing_is_said_where_no_probe_is_wanted_or_no_rank_has_the_plugin() -> None:
    assert taken(ranks(THEIRS), Settings(probe="off")) is None
    assert taken(ranks(THEIRS, "launcher"), Settings()) is None
