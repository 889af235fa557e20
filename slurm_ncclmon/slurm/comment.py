"""A job's comment shared by its user and us: ours first, so that it is seen, the user's kept behind it."""

from __future__ import annotations

LEADER = "ncclmon:"
_BETWEEN = " || "
_LIMIT = 1024
"""Ours alone; slurmdbd keeps more, but squeue's and sacct's columns are for people."""


def user_part(comment: str) -> str:
    """What the user wrote."""
    if not comment.startswith(LEADER):
        return comment
    return comment.partition(_BETWEEN)[2]


def own_part(comment: str) -> str:
    """What we wrote, with its leader; empty when we did not."""
    return comment.partition(_BETWEEN)[0] if comment.startswith(LEADER) else ""


def combined(comment: str, text: str) -> str:
    """The new comment that says `text` and keeps the user's part of the present one."""
    line = " ".join(text.replace("||", "|").split())
    own = line if line.startswith(LEADER) else f"{LEADER} {line}"
    if len(own) > _LIMIT:
        own = own[: _LIMIT - 1] + "…"
    user = user_part(comment)
    return f"{own}{_BETWEEN}{user}" if user else own
