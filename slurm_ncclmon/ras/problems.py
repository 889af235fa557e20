"""The words for what can be wrong with an answer (explained in docs/ras.md). Those in CONTRADICTIONS make it incoherent."""

from __future__ import annotations

EMPTY_COMMUNICATOR = "empty_communicator"
UNFINISHED_COMMUNICATOR = "unfinished_communicator"
SUM_MISMATCH = "sum_mismatch"
COUNT_MISMATCH = "count_mismatch"
DUPLICATE_COMMUNICATOR = "duplicate_communicator"
DUPLICATE_RANK = "duplicate_rank"
RANK_OUT_OF_RANGE = "rank_out_of_range"
TRUNCATED = "truncated"
CORRUPT = "corrupt"
FOREIGN_PROCESS = "foreign_process"

BAD_ENTRY = "bad_entry"
REPAIRED = "repaired"
TIMEOUTS = "timeouts"
ALL_ZERO = "all_zero"
NOT_SEEN = "not_seen"
OTHER_MESHES = "other_meshes"
TEXT_ONLY = "text_only"
MERGED_COUNTS = "merged_counts"
SILENT_PROCESS = "silent_process"

CONTRADICTIONS = frozenset(
    {
        EMPTY_COMMUNICATOR,
        UNFINISHED_COMMUNICATOR,
        SUM_MISMATCH,
        COUNT_MISMATCH,
        DUPLICATE_COMMUNICATOR,
        DUPLICATE_RANK,
        RANK_OUT_OF_RANGE,
        TRUNCATED,
        CORRUPT,
    }
)
"""An answer with one of these contradicts itself or what was known before: neither evidence of a hang nor of progress."""
