"""What a watch does to a job and what it leaves, on a real cluster, as an ordinary user."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.cluster.watching import NCCLMON, QUICK, Watched, start
from tests.lab.user import PYTHON, TRAIN, User, wait_until

pytestmark = pytest.mark.cluster

CANCEL = f"cancel,{QUICK}"


def test_cancel_ends_the_step_after_the_report_and_the_script_goes_on(accounting_user: User) -> None:
    user = accounting_user
    job = start(
        user,
        "not_entered",
        CANCEL,
        sbatch=("--comment=my own words",),
        after="echo srun ended with $?; cat ncclmon-*/verdict.json > verdict-seen.json; exit 0",
    )
    job.wait_for_end()
    assert "srun ended with 137" in job.output
    seen = json.loads((user.folder / "verdict-seen.json").read_text())
    (incident,) = seen["incidents"]
    assert (incident["state"], incident["culprits"][0]["global_rank"]) == ("confirmed", 3)
    assert "Step " in job.report
    assert "was cancelled by ncclmon" in job.report
    assert "wait_for_lost_worker" in job.report
    assert "wait_for_lost_worker" in (job.folder / "stacks" / "3.txt").read_text()
    assert len(list((job.folder / "stacks").glob("?.txt"))) == 8
    comment = user.show(job.job)["Comment"].strip()
    assert comment.startswith("ncclmon: H1 not_entered: rank 3 on n2")
    assert str(job.folder / "report.txt") in comment
    assert comment.endswith("my own words")
    wait_until(lambda: "86:0" in derived(user, job.job), 15.0, "DerivedExitCode is 86")
    assert user.state(job.job) == "COMPLETED"


def derived(user: User, job: int) -> str:
    return user.check(["sacct", "-X", "-n", "-P", "-j", str(job), "-o", "derivedexitcode,comment"])


def test_requeue_puts_the_job_back_with_its_report_on_disk(user: User) -> None:
    job = start(user, "not_entered", f"requeue,{QUICK}", sbatch=("--requeue",))
    wait_until(lambda: user.show(job.job)["Restarts"] == "1", 90.0, "the job was requeued")
    assert job.incidents("confirmed")
    assert "was requeued by ncclmon" in job.report
    assert user.show(job.job)["Comment"].startswith("ncclmon: H1")


def test_requeue_that_slurm_refuses_ends_nothing_and_says_so(user: User) -> None:
    job = start(user, "not_entered", f"requeue,{QUICK}", sbatch=("--no-requeue",))
    job.wait_until_confirmed()
    wait_until(lambda: "Slurm refused" in job.report, 20.0, "the report says so")
    assert user.state(job.job) == "RUNNING"
    assert job.incidents("confirmed")


def test_warnings_reminder_and_recovery_in_the_jobs_own_output(user: User) -> None:
    job = start(user, "data_stall", "observe,confirm=60s,suspect=3s,remind=3s,interval=1s", "--steps 40 --pause 11")
    job.wait_for_end()
    suspected = re.findall(r"SUSPECTED HANG H1: rank 3 on \S+ \(pid \d+, GPU 1\) did not enter AllReduce", job.output)
    assert len(suspected) >= 2, job.output
    assert "frozen for" in job.output
    assert re.search(r"it will be reported in \d+ s", job.output)
    assert re.search(r"RECOVERED H1: rank 3 .* it moves again after \d+", job.output)
    assert job.incidents("recovered")
    assert user.state(job.job) == "COMPLETED"


def test_observing_ends_nothing(user: User) -> None:
    job = start(user, "not_entered")
    job.wait_until_confirmed()
    time.sleep(3)
    assert user.state(job.job) == "RUNNING"
    assert "Nothing was ended" in job.report
    assert user.steps(job.job)
    assert user.show(job.job)["Comment"].startswith("ncclmon: H1")


def test_report_status_and_replay_find_the_job(user: User) -> None:
    job = start(user, "not_entered")
    incident = job.wait_until_confirmed()
    shown = job.ncclmon("report", str(job.job))
    assert (shown.returncode, shown.stdout) == (1, job.report)
    assert job.ncclmon("report", f"{job.job}.0", "--json").returncode == 1
    elsewhere = user.run([NCCLMON, "report", str(job.job)], cwd=user.cluster.home)
    assert elsewhere.stdout == job.report
    status = job.ncclmon("status", str(job.job))
    assert status.returncode == 1
    assert "confirmed" in status.stdout
    assert "rank 3 on n2" in status.stdout
    replayed = job.ncclmon("replay", str(job.folder))
    assert replayed.returncode == 1
    assert f"did not enter AllReduce number {incident['round']}" in " ".join(replayed.stdout.split())


@pytest.mark.parametrize("option", ["", "off"])
def test_a_step_that_is_not_watched_leaves_nothing(user: User, option: str) -> None:
    job = start(user, "none", option, "--steps 15")
    job.wait_for_end()
    assert user.state(job.job) == "COMPLETED"
    assert not list(user.folder.glob("ncclmon-*"))


def test_keep_findings_leaves_nothing_of_a_clean_step(user: User) -> None:
    job = start(user, "none", "observe,keep=findings,interval=1s", "--steps 30")
    wait_until((job.folder / "polls.jsonl").exists, 20.0, "the step is watched")
    job.wait_for_end()
    wait_until(lambda: not job.folder.exists(), 10.0, "the folder is gone")


def test_stacks_off_takes_none(user: User) -> None:
    job = start(user, "not_entered", f"observe,{QUICK},stacks=off")
    job.wait_until_confirmed()
    assert not (job.folder / "stacks").exists()
    assert "gathering" not in job.log


def test_a_monitor_that_is_killed_costs_the_job_nothing(user: User) -> None:
    job = start(user, "none", f"observe,{QUICK}", "--steps 60", after="echo rc $?")
    wait_until((job.folder / "polls.jsonl").exists, 20.0, "the step is watched")
    for pid in monitors(job):
        os.kill(pid, signal.SIGKILL)
    job.wait_for_end()
    assert "rc 0" in job.output
    assert user.state(job.job) == "COMPLETED"


def monitors(job: Watched) -> list[int]:
    listed = subprocess.run(
        ["pgrep", "-f", f"ncclmon monitor {job.job}\\.0"], capture_output=True, text=True, check=False
    )
    return [int(pid) for pid in listed.stdout.split()]


def test_a_full_disk_costs_the_recording_and_not_the_watch(user: User) -> None:
    """A file system of a few pages, as a user's full quota."""
    folder = user.folder / "full"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24k,mode=777", "tmpfs", str(folder)], check=True)
    try:
        script = f"cd full; srun {PYTHON} {TRAIN} --dir {user.folder}/train --fault not_entered --rank 3 --step 15 --duration 90"
        job = user.sbatch(
            script, "-N4", "--ntasks-per-node=2", f"--nccl-hang-detect=observe,{QUICK}", "--output=../full.out"
        )
        watched = Watched(user, job)
        wait_until(
            lambda: user.show(job).get("Comment", "").startswith("ncclmon: H1"), 90.0, "the comment names the hang"
        )
        assert user.state(job) == "RUNNING"
        assert "No space left on device" in (folder / f"ncclmon-{job}.0" / "monitor.log").read_text()
        watched.cancel()
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_links_in_a_folder_that_another_user_made_are_not_followed(user: User) -> None:
    """Job numbers can be guessed, and folders that all may write to are common."""
    shared, precious = user.folder / "shared", user.folder / "precious"
    shared.mkdir()
    shared.chmod(0o777)
    precious.write_text("precious")
    precious.chmod(0o666)
    following = int(user.sbatch("true", "-N1")) + 1
    trap = shared / f"ncclmon-{following}.0"
    trap.mkdir()
    trap.chmod(0o777)
    for name in ("monitor.log", "report.txt.new", "polls.jsonl"):
        (trap / name).symlink_to(precious)
    job = user.sbatch(
        f"cd shared; srun {PYTHON} {TRAIN} --dir {user.folder}/train --steps 15",
        "-N1",
        "-n2",
        f"--nccl-hang-detect=observe,{QUICK}",
    )
    assert job == following
    Watched(user, job).wait_for_end()
    assert user.state(job) == "COMPLETED"
    assert precious.read_text() == "precious"


def test_a_job_that_ends_while_suspected_keeps_what_was_known(user: User) -> None:
    job = start(user, "not_entered", "observe,confirm=90s,suspect=4s,interval=1s")
    wait_until(lambda: "SUSPECTED" in job.output, 60.0, "the suspicion")
    job.cancel()
    wait_until(lambda: job.incidents("suspected"), 15.0, "the last report")
    assert "SUSPECTED HANG H1" in job.report


def test_attach_watches_a_step_that_was_started_without_the_option(user: User) -> None:
    job = start(user, "not_entered", "")
    wait_until(lambda: user.steps(job.job), 20.0, "the step runs")
    process = user.cluster.popen(
        [NCCLMON, "attach", str(job.job), "--options", f"observe,{QUICK}"],
        cwd=user.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    job.wait_until_confirmed()
    job.cancel()
    output, _ = process.communicate(timeout=30)
    assert "watching step" in output
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("name", "train", "srun_ntasks"),
    [("torchrun", "--torchrun 2", 1), ("disjoint", "--groups tp --group tp", 2)],
)
def test_other_shapes_of_jobs(user: User, name: str, train: str, srun_ntasks: int) -> None:
    """torchrun's workers share one task and one port; groups without a world are meshes of their own."""
    arguments = f"--tp 4 --fault not_entered --rank 3 --step 15 --duration 100 {train}"
    job = user.sbatch(
        f"srun {PYTHON} {TRAIN} {arguments}", "-N4", f"--ntasks-per-node={srun_ntasks}",
        f"--nccl-hang-detect=observe,{QUICK}",
    )  # fmt: skip
    watched = Watched(user, job)
    incident = watched.wait_until_confirmed()
    assert [culprit["global_rank"] for culprit in incident["culprits"]] == [3], name


def test_the_users_own_ras_address_is_kept_and_asked(user: User) -> None:
    job = user.sbatch(
        f"export NCCL_RAS_ADDR=localhost:19977\nsrun {PYTHON} {TRAIN} --steps 40",
        "-N4", "--ntasks-per-node=2", f"--nccl-hang-detect=observe,{QUICK}",
    )  # fmt: skip
    watched = Watched(user, job)
    watched.wait_for_end()
    document = watched.document
    assert document["polls"] > document["unusable_polls"]
    assert json.loads(Path(user.folder / f"train-{job}.0" / "ranks.json").read_text())["ras"] == "localhost:19977"
