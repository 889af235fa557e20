"""Step names, host lists and the shared comment."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_ncclmon.errors import SlurmError, UsageError
from slurm_ncclmon.slurm.cluster import cluster_name, own_cluster
from slurm_ncclmon.slurm.comment import combined, own_part, user_part
from slurm_ncclmon.slurm.hostlist import expand, fold, fold_numbers
from slurm_ncclmon.slurm.step import BATCH, StepId


@pytest.mark.parametrize(
    ("text", "step"),
    [("12.3", StepId(12, 3)), ("StepId=12.0", StepId(12, 0)), ("7.batch", StepId(7, BATCH)), (" 1.0\n", StepId(1, 0))],
)
def test_step_names(text: str, step: StepId) -> None:
    assert StepId.parse(text) == step


@pytest.mark.parametrize("text", ["", "12", "12.", ".3", "12.TBD", "12.3.4", "a.b", "12_1.0"])
def test_what_is_no_step(text: str) -> None:
    with pytest.raises(UsageError, match=r"JOB\.STEP"):
        StepId.parse(text)


def test_step_is_written_as_slurm_writes_it() -> None:
    assert str(StepId(12, 3)) == "12.3"
    assert str(StepId(12, BATCH)) == "12.batch"
    assert StepId(12, 3).numbered
    assert not StepId(12, BATCH).numbered


@pytest.mark.parametrize(
    ("folded", "names"),
    [
        ("n1", ["n1"]),
        ("n[1-3,7]", ["n1", "n2", "n3", "n7"]),
        ("n[08-10]", ["n08", "n09", "n10"]),
        ("a[1-2]-ib,login", ["a1-ib", "a2-ib", "login"]),
        ("r[1-2]n[01-02]", ["r1n01", "r1n02", "r2n01", "r2n02"]),
        ("", []),
    ],
)
def test_expand(folded: str, names: list[str]) -> None:
    assert list(expand(folded)) == names


@pytest.mark.parametrize("broken", ["n[1-", "n[a-b]", "n[1,,2]"])
def test_expand_refuses_what_is_no_list(broken: str) -> None:
    with pytest.raises(SlurmError, match="not a node list"):
        expand(broken)


@pytest.mark.parametrize(
    ("names", "folded"),
    [
        (["n1"], "n1"),
        (["n3", "n1", "n2", "n7"], "n[1-3,7]"),
        (["n08", "n09", "n10"], "n[08-10]"),
        (["n9", "n10", "n100"], "n[9-10,100]"),
        (["a1-ib", "a2-ib"], "a[1-2]-ib"),
        (["login", "n1"], "n1,login"),
        ([], ""),
    ],
)
def test_fold(names: list[str], folded: str) -> None:
    assert fold(names) == folded


NAMES = st.from_regex(r"[a-z]{1,3}[0-9]{1,4}(-[a-z]{1,2})?", fullmatch=True)


@given(st.sets(NAMES, max_size=40))
def test_fold_and_expand_are_inverse(names: set[str]) -> None:
    assert set(expand(fold(names))) == names


@given(st.sets(st.integers(0, 10000), max_size=60))
def test_folded_numbers_hold_each_number_once(numbers: set[int]) -> None:
    spans = [part.split("-") for part in fold_numbers(numbers).split(",") if part]
    unfolded = [number for span in spans for number in range(int(span[0]), int(span[-1]) + 1)]
    assert unfolded == sorted(numbers)


def test_comment_keeps_what_the_user_wrote() -> None:
    first = combined("my run, lr=3e-4", "H1 rank 3")
    second = combined(first, "H1 rank 3 report=/x")
    assert first.startswith("ncclmon: H1 rank 3")
    assert user_part(second) == "my run, lr=3e-4"
    assert own_part(second) == "ncclmon: H1 rank 3 report=/x"
    assert combined("", "ncclmon: x") == "ncclmon: x"


@given(
    user=st.text(max_size=60).filter(lambda text: not text.startswith("ncclmon:")), said=st.lists(st.text(), max_size=4)
)
def test_comment_never_loses_the_users_part(user: str, said: list[str]) -> None:
    comment = user
    for text in said:
        comment = combined(comment, text)
        assert comment.startswith("ncclmon:")
    assert user_part(comment) == user


def test_cluster_name(tmp_path: object) -> None:
    assert cluster_name({"SLURM_CLUSTER_NAME": "Big"}) == "big"
    assert cluster_name({"SLURM_WORKING_CLUSTER": "big:10.0.0.1:6817:9728:109"}) == "big"
    conf = tmp_path / "slurm.conf"  # type: ignore[operator]
    conf.write_text("# a comment\nClusterName=Big\n")
    assert own_cluster({"SLURM_CONF": str(conf)}) == "big"
    assert own_cluster({"SLURM_CONF": "/nowhere"}) == ""
