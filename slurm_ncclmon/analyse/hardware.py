"""GPUs whose failure the kernel's own messages tell, with the process that used them."""

from __future__ import annotations

import re
from dataclasses import replace

from slurm_ncclmon.analyse.draft import Draft
from slurm_ncclmon.analyse.facts import Facts
from slurm_ncclmon.analyse.names import Names

_XID_PID = re.compile(r"Xid.*?pid=(\d+)")


def failed_gpus(facts: Facts) -> dict[int, str]:
    """Processes that the kernel's messages name together with an error of their GPU, and the message."""
    nodes = facts.evidence.nodes if facts.evidence is not None else ()
    events = [(node.node, event) for node in nodes for event in node.events]
    named = [
        (node, event, int(found.group(1))) for node, event in events if (found := _XID_PID.search(event)) is not None
    ]
    result: dict[int, str] = {}
    for process in facts.known() if named else ():
        fact = facts.of(process)
        for node, event, pid in named:
            if fact is not None and fact.node == node and pid in (fact.report.pid, fact.report.ns_pid):
                result[process] = event
    return result


def with_failed_gpus(draft: Draft, names: Names) -> Draft | None:
    """`draft` with the ranks whose GPU has failed as culprits; None when the kernel names none."""
    failed = failed_gpus(names.facts)
    if not failed:
        return None
    return replace(
        draft,
        kind="hardware",
        culprits=tuple(
            names.culprit(names.row_of(process), f"its GPU failed: {event}") for process, event in failed.items()
        ),
        processes=frozenset(failed),
        confidence=0.85,
        evidence=(
            *draft.evidence,
            *(f"Kernel log of {names.host(process)}: {event}" for process, event in failed.items()),
        ),
        alternatives=(),
        not_decidable=(),
        victims=draft.victims + len(draft.processes) - len(failed),
        confirmable=True,
    )
