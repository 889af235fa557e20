"""Where a process is missed that several collectives wait for."""

from __future__ import annotations

import numpy as np
import pytest

from slurm_ncclmon.analyse.device_graph import DeviceGraph, missed_in

Pairs = list[tuple[int, int]]


@pytest.mark.parametrize(
    ("miss", "launched", "processes", "expected"),
    [
        ([(0, 6), (1, 6)], [], [6], [(0, [6])]),
        ([(0, 6), (1, 6)], [(1, 6)], [6], [(1, [6])]),
        ([(0, 6), (0, 7), (1, 6)], [(1, 6)], [6, 7], [(1, [6]), (0, [7])]),
        ([(0, 6), (1, 6), (1, 7)], [], [6, 7], [(1, [6, 7])]),
        ([(0, 6), (1, 7)], [], [7], [(1, [7])]),
    ],
)
def test_a_process_is_missed_first_where_it_has_launched(
    miss: Pairs, launched: Pairs, processes: list[int], expected: list[tuple[int, list[int]]]
) -> None:
    graph = DeviceGraph(None, {}, _miss=miss, _launched=launched)  # type: ignore[arg-type]
    found = missed_in(graph, np.array(processes, np.int64))
    assert [(comm, ranks.tolist()) for comm, ranks in found] == expected
