"""The plugin on a running cluster, as an ordinary user, with a stand-in for the monitor: which steps get one, how it ends,
and what the user's job notices (nothing)."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.standin import Place, install, wait_until
from tests.lab.cluster import PREFIX, Cluster

pytestmark = pytest.mark.cluster

WATCH = "--nccl-hang-detect"
DELAY = "delay=200ms"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    cluster = Cluster(f"plugin{os.getpid()}")
    arguments = f"{DELAY} ncclmon={cluster.folder}/monitor"
    cluster.up(plugin_args=arguments, extra_conf=["LaunchParameters=use_interactive_step"])
    try:
        install(cluster.folder)
        yield cluster
    finally:
        cluster.down()


@pytest.fixture(scope="module", autouse=True)
def job_with_time_limit(cluster: Cluster) -> Place:
    """Started first and looked at last: Slurm counts time limits in minutes."""
    place = Place(cluster, "time_limit")
    place.run("sbatch", "-n1", "-t1", "-o", "out", WATCH, f"--wrap=srun {place.when_watched} sleep 300")
    return place


@pytest.fixture
def place(cluster: Cluster, request: pytest.FixtureRequest) -> Place:
    return Place(cluster, re.sub(r"\W+", "_", request.node.name))


def job_of(place: Place) -> str:
    return place.folders()[0].split("-")[1].split(".")[0]


# ---- which steps are watched, and with which options


def test_option_of_sbatch_reaches_the_steps(place: Place) -> None:
    output = place.batch(f"srun {place.when_watched} true; echo rc $?", f"{WATCH}=cancel,confirm=15s")
    assert "rc 0" in output
    job = job_of(place)
    assert f"start monitor {job}.0 --options cancel,confirm=15s\n" in place.only_log()
    assert f"on n1 as {job}.1, option off, folder {place.path}/ncclmon-{job}.0\n" in place.only_log()


def test_directive_in_the_script(place: Place) -> None:
    place.batch(f"#SBATCH {WATCH}=confirm=15s\nsrun {place.when_watched} true")
    assert "--options observe,confirm=15s\n" in place.only_log()


def test_command_line_replaces_the_directive(place: Place) -> None:
    place.batch(f"#SBATCH {WATCH}=cancel,confirm=15s\nsrun {place.when_watched} true", f"{WATCH}=remind=30s")
    assert "--options observe,remind=30s\n" in place.only_log()


def test_environment_is_the_options_twin(place: Place) -> None:
    place.batch(f"srun {place.when_watched} true", env={"SLURM_NCCL_HANG_DETECT": "cancel"})
    assert "--options cancel\n" in place.only_log()


def test_option_is_stronger_than_environment_key_by_key(place: Place) -> None:
    place.run(
        "srun",
        f"{WATCH}=confirm=15s",
        place.when_watched,
        "true",
        env={"SLURM_NCCL_HANG_DETECT": "cancel,confirm=1m,keep=findings"},
    )
    assert "--options cancel,confirm=15s,keep=findings\n" in place.only_log()


@pytest.mark.parametrize("where", ["sbatch", "srun"])
def test_export_none(place: Place, where: str) -> None:
    options = ["--export=NONE"] if where == "sbatch" else []
    inner = "--export=NONE" if where == "srun" else ""
    # --export=NONE leaves no PATH that a task could rely on
    output = place.batch(f"/usr/bin/srun {inner} {place.when_watched} /usr/bin/env", WATCH, *options)
    assert "--options observe\n" in place.only_log()
    assert "NCCL_RAS_ADDR=localhost:" in output


def test_srun_with_an_allocation_of_its_own(place: Place) -> None:
    result = place.run("srun", "-N2", WATCH, place.when_watched, "hostname")
    assert result.returncode == 0
    assert place.only_log().count("start") == 1


def test_salloc(place: Place) -> None:
    result = place.run("salloc", WATCH, "srun", place.when_watched, "true")
    assert result.returncode == 0
    place.wait_for_log("end")
    assert f"start monitor {job_of(place)}.0 " in place.only_log()


def test_interactive_step_of_salloc_is_not_watched(place: Place) -> None:
    script = f"sleep 0.6\nsrun {place.when_watched} true\nexit\n"
    result = place.run("salloc", WATCH, stdin=script, env={"SHELL": "/bin/bash"})
    assert result.returncode == 0, result.stderr
    assert f"start monitor {job_of(place)}.0 " in place.only_log()


def test_job_array(place: Place) -> None:
    place.batch(f"srun {place.when_watched} true", "--array=0-1", "-n1", WATCH)
    assert len(place.folders()) == 2
    assert all(log.count("start") == 1 for log in place.logs())


def test_sequential_and_parallel_steps(place: Place) -> None:
    body = f"""
    srun -n1 {place.when_watched} true
    srun -n1 --exact {place.when_watched} sleep 0.5 & srun -n1 --exact {place.when_watched} sleep 0.5 &
    wait
    """
    place.batch(body, "-n2", WATCH)
    job = job_of(place)
    started = [re.search(r"start monitor (\S+) ", log) for log in place.logs()]
    assert len(started) == 3
    assert {f"ncclmon-{match[1]}" for match in started if match} == set(place.folders())
    assert f"ncclmon-{job}.0" in place.folders()


def test_heterogeneous_job(place: Place) -> None:
    body = f"srun --het-group=0,1 {place.when_watched} env | grep NCCL_RAS_ADDR\nsrun --het-group=1 {place.when_watched} true"
    output = place.batch(body, "-n1", WATCH, ":", "-n2")
    both, second = place.logs()
    leader = job_of(place)
    assert f"start monitor {leader}.0 " in both
    assert "on n1 " in both
    assert f"start monitor {leader}." in second
    addresses = re.findall("NCCL_RAS_ADDR=.*", output)
    assert len(addresses) == 3
    assert len(set(addresses)) == 3, "all three tasks run on the first node"


def test_heterogeneous_srun(place: Place) -> None:
    result = place.run("srun", "-n1", WATCH, place.when_watched, "true", ":", "-n2", place.when_watched, "true")
    assert result.returncode == 0, result.stderr
    assert f"start monitor {job_of(place)}.0 " in place.only_log()


def test_off_wins_over_the_site(cluster: Cluster, place: Place) -> None:
    before = cluster.plan.plugin_args
    cluster.set_plugin_args(f"{before} default=observe,confirm=5m min_tasks=2")
    try:
        place.run("srun", "-n2", place.when_watched, "true")
        assert "--options observe,confirm=5m\n" in place.only_log()
        for command in (
            ["srun", "-n2", f"{WATCH}=off"],
            ["srun", "-n1"],
            ["env", "SLURM_NCCL_HANG_DETECT=off", "srun", "-n2"],
        ):
            place.run(*command, "sleep", "0.5")
        assert len(place.folders()) == 1
        place.run("srun", "-n1", WATCH, place.when_watched, "true")
        assert len(place.folders()) == 2
    finally:
        cluster.set_plugin_args(before)


def test_small_steps_inside_an_interactive_allocation(cluster: Cluster, place: Place) -> None:
    before = cluster.plan.plugin_args
    cluster.set_plugin_args(f"{before} default=observe min_tasks=2")
    try:
        script = f"srun -n1 sleep 0.6 < /dev/null\nsrun -n2 {place.when_watched} true\nexit\n"
        result = place.run("salloc", "-n2", stdin=script, env={"SHELL": "/bin/bash"})
    finally:
        cluster.set_plugin_args(before)
    assert result.returncode == 0, result.stderr
    assert f"start monitor {job_of(place)}.1 " in place.only_log()


def test_mistakes_of_the_site_break_no_job(cluster: Cluster, place: Place) -> None:
    before = cluster.plan.plugin_args
    cluster.set_plugin_args(f"{before} default=cancle dealy=1s")
    try:
        result = place.run("srun", "sh", "-c", "sleep 0.5; echo fine")
        assert (result.returncode, result.stdout, result.stderr) == (0, "fine\n", "")
        assert not place.folders()
        cluster.restart(daemons=["slurmd-n4"])
        log = cluster.folder / "log" / "slurmd-n4.log"
        wait_until(
            lambda: "ncclmon: plugstack.conf: dealy=1s: unknown (known: default" in log.read_text(), "a line in the log"
        )
        assert "did you mean 'cancel'?" in log.read_text()
    finally:
        cluster.set_plugin_args(before)


def test_steps_of_the_monitor_are_not_watched(cluster: Cluster, place: Place) -> None:
    before = cluster.plan.plugin_args
    cluster.set_plugin_args(f"{before} default=observe")
    try:
        place.run("srun", place.when_watched, "sleep", "2", env={"NCCLMON_STANDIN": "fanout"})
        place.wait_for_log("fanout \n")
        assert len(place.folders()) == 1
    finally:
        cluster.set_plugin_args(before)


def test_wrong_values_are_refused_at_submission(place: Place) -> None:
    refused = place.run("sbatch", f"{WATCH}=confirm=15x", "--wrap", "true")
    assert refused.returncode != 0
    assert "ncclmon: --nccl-hang-detect: confirm: '15x' is not a duration (write 15s, 5m or 1h)" in refused.stderr
    refused = place.run("sbatch", "--wrap", "true", env={"SLURM_NCCL_HANG_DETECT": "cancle"})
    assert refused.returncode != 0
    assert "SLURM_NCCL_HANG_DETECT: 'cancle' is neither a mode" in refused.stderr


def test_wrong_environment_inside_a_job_costs_the_watch_only(place: Place) -> None:
    output = place.batch("export SLURM_NCCL_HANG_DETECT=cancle; srun sleep 0.5; echo rc $?")
    assert "rc 0" in output
    assert "did you mean 'cancel'?; this step is not watched" in output
    assert not place.folders()


# ---- what the tasks find in their environment


def test_each_step_has_a_port_of_its_own(place: Place) -> None:
    output = place.batch("srun -N2 printenv NCCL_RAS_ADDR; srun printenv NCCL_RAS_ADDR", "-N2", WATCH)
    first, again, *second = re.findall(r"localhost:\d+", output)  # srun may say besides that it had to wait
    assert first == again
    assert set(second) == {second[0]}
    assert first != second[0]
    assert all(20000 <= int(address.rpartition(":")[2]) < 30000 for address in (first, second[0]))


def test_each_task_of_a_node_has_a_port_of_its_own(place: Place) -> None:
    """What one task starts, as torchrun starts workers, shares that task's port."""
    show = "echo $SLURM_NODEID $SLURM_LOCALID $NCCL_RAS_ADDR; sh -c 'echo child $SLURM_NODEID $SLURM_LOCALID $NCCL_RAS_ADDR'"
    result = place.run("srun", "-N2", "--ntasks-per-node=2", WATCH, "sh", "-c", show)
    lines = [line.split() for line in result.stdout.splitlines()]
    own = {(node, task): address for node, task, address in (line for line in lines if len(line) == 3)}
    assert len(own) == 4
    assert own["0", "0"] != own["0", "1"]
    assert own == {(node, task): own["0", task] for node, task in own}, "the same on each node"
    assert {(node, task): address for _, node, task, address in (line for line in lines if len(line) == 4)} == own


@pytest.mark.parametrize("option", ["ras=off", "ras=localhost:5"])
def test_no_address_where_ras_says_so(place: Place, option: str) -> None:
    assert place.run("srun", "-n2", f"{WATCH}={option}", "printenv", "NCCL_RAS_ADDR").stdout == ""


def test_own_address_of_one_task_survives(place: Place) -> None:
    result = place.run("srun", "-n2", WATCH, "printenv", "NCCL_RAS_ADDR", env={"NCCL_RAS_ADDR": "localhost:4711"})
    assert result.stdout == "localhost:4711\n" * 2


def test_users_own_variables_survive(cluster: Cluster, place: Place) -> None:
    own = {"NCCL_RAS_ADDR": "localhost:4711", "NCCL_PROFILER_PLUGIN": "/mine.so"}
    show = ["sh", "-c", "echo $NCCL_RAS_ADDR $NCCL_PROFILER_PLUGIN $NCCLMON_PROBE_DIR"]
    result = place.run("srun", f"{WATCH}=probe=on", *show, env=own)
    assert result.stdout == "localhost:4711 /mine.so\n"
    result = place.run("srun", f"{WATCH}=probe=on,ras=off", *show)
    plugin, folder = result.stdout.split()
    assert plugin.endswith("/lib/ncclmon/libnccl-profiler-ncclmon.so")
    assert re.fullmatch(r"/dev/shm/ncclmon-\d+-[0-9a-f]{8}-\d+\.0", folder)
    assert place.run("srun", f"{WATCH}=probe=off,ras=off", *show).stdout == "\n"


def test_unwatched_steps_find_nothing(place: Place) -> None:
    result = place.run("srun", "env")
    assert "NCCL_" not in result.stdout.replace("SLURM_NCCL_HANG_DETECT", "")
    assert "HANG" not in result.stdout
    output = place.batch("env", WATCH)
    assert "NCCL_RAS_ADDR" not in output, "the batch step is not a step of the user's"


# ---- what a step's probes leave in memory

MAKE_FRAMES = "mkdir -p -m 700 $NCCLMON_PROBE_DIR; : > $NCCLMON_PROBE_DIR/$$.frames; echo $NCCLMON_PROBE_DIR;"


def probe_folder(output: str) -> Path:
    return Path(output.split(maxsplit=1)[0])


def test_probes_folder_goes_with_the_step(place: Place) -> None:
    result = place.run("srun", "-N2", "-n4", f"{WATCH}=probe=on", "sh", "-c", MAKE_FRAMES)
    assert result.returncode == 0
    assert re.fullmatch(r"/dev/shm/ncclmon-\d+-[0-9a-f]{8}-\d+\.0", str(probe_folder(result.stdout)))
    wait_until(lambda: not probe_folder(result.stdout).exists(), "the folder is gone")


def test_probes_folder_goes_with_a_cancelled_step(place: Place) -> None:
    with place.popen("srun", f"{WATCH}=probe=on", place.when_watched, "sh", "-c", f"{MAKE_FRAMES} sleep 60") as process:
        assert process.stdout
        folder = probe_folder(process.stdout.readline())
        assert list(folder.glob("*.frames"))
        place.run("scancel", f"{job_of(place)}.0")
        process.communicate(timeout=20)
    wait_until(lambda: not folder.exists(), "the folder is gone")


def test_frames_of_processes_that_go_on_stay(place: Place) -> None:
    """Here both nodes have the same memory, as two components of a heterogeneous job may have."""
    last = '[ "$SLURM_NODEID" = 1 ] || { sleep 1; ls $NCCLMON_PROBE_DIR; echo $$.frames; }'
    result = place.run("srun", "-N2", f"{WATCH}=probe=on", "sh", "-c", f"{MAKE_FRAMES} {last}")
    first, second, left, own = result.stdout.split()
    assert first == second
    assert left == own
    wait_until(lambda: not Path(first).exists(), "the folder is gone")


@pytest.mark.parametrize("folder", ["$NCCLMON_PROBE_DIR", "other"])
def test_what_is_no_probes_file_stays(place: Place, folder: str) -> None:
    """A user's own file in the folder; a link in the folder's place."""
    make = f"mkdir -p -m 700 {folder}; [ -e $NCCLMON_PROBE_DIR ] || ln -s $PWD/{folder} $NCCLMON_PROBE_DIR;"
    files = (
        "cd -P $NCCLMON_PROBE_DIR; : > notes.txt; [ -L $NCCLMON_PROBE_DIR ] && : > 9.frames; echo $NCCLMON_PROBE_DIR"
    )
    result = place.run("srun", f"{WATCH}=probe=on", "sh", "-c", make + files)
    found = probe_folder(result.stdout)
    try:
        assert (result.returncode, result.stderr) == (0, "")
        time.sleep(0.5)
        assert (found / "notes.txt").exists()
        assert (found / "9.frames").exists() == found.is_symlink() == (folder == "other")
    finally:
        shutil.rmtree(found.resolve())
        found.unlink(missing_ok=True)


# ---- how it ends


def test_short_step_gets_no_monitor(cluster: Cluster, place: Place) -> None:
    before = cluster.plan.plugin_args
    cluster.set_plugin_args(f"{before} delay=3s")
    try:
        result = place.run("srun", WATCH, "true")
    finally:
        cluster.set_plugin_args(before)
    assert result.returncode == 0, result.stderr
    assert "ncclmon" not in result.stderr
    wait_until(lambda: not place.helpers(), "no process of ours is left", 1.0)
    assert not place.folders()


def test_monitor_ends_with_its_step(place: Place) -> None:
    place.run("srun", WATCH, place.when_watched, "true")
    wait_until(lambda: not place.helpers(), "no process of ours is left")
    assert not place.steps(job_of(place))


def test_exit_code_of_a_failed_step(place: Place) -> None:
    output = place.batch(
        f"srun {place.when_watched} sh -c 'exit 7'; echo rc $?; squeue -h -s -j $SLURM_JOB_ID -o %i", f"{WATCH}=cancel"
    )
    rc, *steps = output.strip().splitlines()[-2:]
    assert rc == "rc 7"
    assert steps == [f"{job_of(place)}.batch"], "a failed step waits for a monitor that may have ended it"
    assert "end" in place.only_log()


def test_cancelled_step(place: Place) -> None:
    body = f"srun {place.when_watched} sleep 60 & sleep 0.2; wait_for=1; until ls ncclmon-*/monitor.log; do sleep 0.1; done\n"
    output = place.batch(body + "sleep 0.3; scancel $SLURM_JOB_ID.0; wait %1; echo rc $?", f"{WATCH}=cancel")
    assert "rc 137" in output
    assert "end" in place.only_log()


def test_exit_code_of_a_monitor_that_cancels(place: Place) -> None:
    body = (
        f"srun -n2 {place.when_watched} sleep 60; echo rc $?; scontrol show -d job $SLURM_JOB_ID | grep DerivedExitCode"
    )
    output = place.batch(body, "-n2", f"{WATCH}=cancel", env={"NCCLMON_STANDIN": "cancel"})
    assert "rc 137" in output
    assert "DerivedExitCode=86:0" in output


def test_cancelled_job(place: Place) -> None:
    place.run("sbatch", "-o", "out", WATCH, f"--wrap=srun {place.when_watched} sleep 60")
    place.wait_for_log("start")
    place.run("scancel", job_of(place))
    wait_until(lambda: not place.helpers(), "no process of ours is left")
    wait_until(lambda: not place.steps(job_of(place)), "no step is left")


def test_killed_srun(place: Place) -> None:
    body = f"srun {place.when_watched} sleep 60 & until ls ncclmon-*/monitor.log; do sleep 0.1; done; sleep 0.3\n"
    place.batch(body + "kill -KILL $!; wait; sleep 4; squeue -h -s -j $SLURM_JOB_ID -o %i", WATCH)
    assert "end" in place.only_log()
    steps = re.findall(r"^\d+\.\w+$", (place.path / "out").read_text(), re.MULTILINE)
    assert steps == [f"{job_of(place)}.batch"]


@pytest.mark.parametrize(("number", "times", "code"), [(signal.SIGINT, 2, 130), (signal.SIGTERM, 1, 137)])
def test_signals_reach_srun_as_ever(place: Place, number: signal.Signals, times: int, code: int) -> None:
    with place.popen("srun", WATCH, place.when_watched, "sleep", "60") as process:
        place.wait_for_log("start")
        for _ in range(times):
            os.killpg(process.pid, number)
            time.sleep(0.05)  # both within one second of the clock, as Slurm 26.05 wants them
        process.communicate(timeout=20)
    assert process.returncode == code
    wait_until(lambda: not place.helpers(), "no process of ours is left")


def test_one_interrupt_ends_nothing(place: Place) -> None:
    with place.popen("srun", WATCH, place.when_watched, "sleep", "1.5") as process:
        place.wait_for_log("start")
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=20)
    assert process.returncode == 0
    assert "interrupt (one more within 1 sec to abort)" in err


def test_executable_that_does_not_exist(place: Place) -> None:
    result = place.run("srun", WATCH, "/no/such/program")
    assert result.returncode == 2
    wait_until(lambda: not place.helpers(), "no process of ours is left")


def test_requeued_job_keeps_the_first_report(place: Place) -> None:
    body = f"srun {place.when_watched} sleep $((SLURM_RESTART_COUNT ? 1 : 60))"
    (place.path / "job.sh").write_text(f"#!/bin/bash\n{body}\n")
    place.run("sbatch", "-o", "out", "--requeue", WATCH, "job.sh")
    place.wait_for_log("start")
    job = job_of(place)
    requeued = place.run("scontrol", "requeue", job)
    assert requeued.returncode == 0, requeued.stderr
    # slurmd counts in seconds: it takes a job that comes back within one for the job that it has just ended
    time.sleep(1.5)

    def runs_again() -> bool:
        # Slurm lets a requeued job wait for two minutes; an administrator may start it at once
        if "(BeginTime)" in place.run("squeue", "-h", "-j", job).stdout:
            place.cluster.run(["scontrol", "update", f"JobId={job}", "StartTime=now"], root=True)
            time.sleep(1)
        return len(place.folders()) == 2

    wait_until(runs_again, "second report folder", 30)
    assert place.folders() == [f"ncclmon-{job}.0", f"ncclmon-{job}.0.r1"]


# ---- what goes wrong with the monitor is no trouble of the job's


def test_monitor_that_ignores_the_end(place: Place) -> None:
    body = f"time srun {place.when_watched} true; echo rc $?"
    output = place.batch(body, WATCH, env={"NCCLMON_STANDIN": "deaf", "TIMEFORMAT": "took %R"})
    assert "rc 0" in output
    took = re.search(r"took (\S+)", output)
    assert took
    assert float(took[1]) < 3, "a step that succeeded does not wait for its monitor"
    wait_until(lambda: not place.steps(job_of(place)), "the job is not held", 15)
    wait_until(lambda: not place.helpers(), "no process of ours is left", 20)


def test_failed_step_waits_for_a_deaf_monitor_for_a_bounded_time(place: Place) -> None:
    started = time.monotonic()
    result = place.run("srun", f"{WATCH}=cancel", place.when_watched, "false", env={"NCCLMON_STANDIN": "deaf"})
    assert result.returncode == 1
    assert time.monotonic() - started < 8
    wait_until(lambda: not place.helpers(), "no process of ours is left", 20)


def test_failed_step_that_is_only_observed_waits_for_nothing(place: Place) -> None:
    body = f"time srun {place.when_watched} false; echo rc $?"
    output = place.batch(body, WATCH, env={"NCCLMON_STANDIN": "deaf", "TIMEFORMAT": "took %R"})
    took = re.search(r"took (\S+)", output)
    assert took
    assert float(took[1]) < 3
    wait_until(lambda: not place.helpers(), "no process of ours is left", 20)


def test_step_that_ends_while_slurmctld_does_not_answer(cluster: Cluster, place: Place) -> None:
    """ncclmon-step, started by hand as srun does it, leaves with the line and not with slurmctld's answer."""
    ours, theirs = socket.socketpair()
    slurmctld = cluster.pid("slurmctld")
    assert slurmctld
    command = [str(PREFIX / "lib" / "ncclmon" / "ncclmon-step"), "1", "0", "observe", "srun", "ncclmon"]
    os.kill(slurmctld, signal.SIGSTOP)
    try:
        with cluster.popen(command, cwd=place.path, stdin=theirs, stderr=subprocess.PIPE, text=True) as process:
            theirs.close()
            time.sleep(1)
            assert process.poll() is None, "it waits for slurmctld"
            ours.shutdown(socket.SHUT_WR)
            assert process.communicate(timeout=2) == (None, "")
    finally:
        os.kill(slurmctld, signal.SIGCONT)
        ours.close()
    assert not place.folders()


@pytest.mark.parametrize("how", ["crash", "early", "7"])
def test_monitor_that_ends_early(place: Place, how: str) -> None:
    result = place.run(
        "srun", WATCH, place.when_watched, "sh", "-c", "sleep 0.5; echo fine", env={"NCCLMON_STANDIN": how}
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "fine\n", "")
    code = {"crash": "139", "early": "86", "7": "7"}[how]
    place.wait_for_log(f"exit code {code}\n")


@pytest.mark.parametrize("how", ["crash", "7", "/no/such/ncclmon"])
def test_broken_monitor_leaves_no_mark_on_the_job(cluster: Cluster, place: Place, how: str) -> None:
    before = cluster.plan.plugin_args
    if how.startswith("/"):
        cluster.set_plugin_args(f"{before} ncclmon={how}")
    show = "scontrol show -d job $SLURM_JOB_ID | grep DerivedExitCode"
    try:
        output = place.batch(f"srun sleep 1.5; {show}", f"{WATCH}=cancel", env={"NCCLMON_STANDIN": how})
    finally:
        cluster.set_plugin_args(before)
    assert "DerivedExitCode=0:0" in output
    assert "ncclmon: the monitor ended with exit code" in place.only_log()


def test_monitor_hears_of_the_end_by_sigterm(place: Place) -> None:
    place.run(
        "sbatch", "-o", "out", WATCH, f"--wrap=srun {place.when_watched} sleep 60", env={"NCCLMON_STANDIN": "term"}
    )
    place.wait_for_log("start")
    job = job_of(place)
    place.run("scancel", "--signal=TERM", f"{job}.1")
    place.wait_for_log("told\n")
    wait_until(lambda: not place.helpers(), "the monitor ends by itself")
    assert "the monitor ended with exit code 3\n" in place.only_log()
    place.run("scancel", job)


def test_monitor_that_writes_without_end(place: Place) -> None:
    """The log ends; the monitor goes on."""
    with place.popen("srun", WATCH, "sleep", "60", env={"NCCLMON_STANDIN": "flood"}) as process:
        wait_until((place.path / "flooded").exists, "all is written", 50)
        time.sleep(1)
        job = job_of(place)
        assert f"{job}.1" in place.steps(job)
        place.run("scancel", f"{job}.0")
        process.communicate(timeout=20)
    log = next(place.path.glob("ncclmon-*/monitor.log"))
    assert log.stat().st_size == 256 << 20
    wait_until(lambda: not place.helpers(), "no process of ours is left")
    log.unlink()


def test_monitor_that_is_missing(cluster: Cluster, place: Place) -> None:
    before = cluster.plan.plugin_args
    for missing in ("ncclmon=/no/such/ncclmon", "srun=/no/such/srun"):
        cluster.set_plugin_args(f"{before} {missing}")
        try:
            result = place.run("srun", WATCH, "sh", "-c", "sleep 0.8; echo fine")
        finally:
            cluster.set_plugin_args(before)
        assert (result.returncode, result.stdout, result.stderr) == (0, "fine\n", "")
    first, second = place.logs()
    assert re.search("/no/such/ncclmon: (not found|No such file or directory)", first)
    assert "ncclmon: cannot run /no/such/srun: No such file or directory" in second


def test_report_folder_that_cannot_be_made(place: Place) -> None:
    result = place.run("srun", f"{WATCH}=dir=/proc/none", "sh", "-c", "sleep 0.8; echo fine")
    assert (result.returncode, result.stdout) == (0, "fine\n")
    assert re.fullmatch(
        r"ncclmon: step \d+\.0 is not watched: cannot make the report folder /proc/none/ncclmon-\S+: "
        r"No such file or directory \(dir=PATH puts it elsewhere\)\n",
        result.stderr,
    )


def test_log_that_is_a_link(place: Place) -> None:
    """It cannot be one unless the user has made it, and is not followed even then."""
    folder = "ncclmon-$SLURM_JOB_ID.0"
    output = place.batch(f"mkdir {folder}; : > other; ln -s ../other {folder}/monitor.log; srun sleep 0.8", WATCH)
    assert re.search(r"ncclmon: step \d+\.0 is not watched: Too many levels of symbolic links", output)
    assert (place.path / "other").read_text() == ""


def test_report_folder_of_somebody_else(place: Place) -> None:
    body = "ln -s /tmp ncclmon-$SLURM_JOB_ID.0\nsrun sh -c 'sleep 0.8; echo fine'; echo rc $?"
    output = place.batch(body, WATCH)
    assert "what is there is not a folder of yours alone (dir=PATH puts it elsewhere)" in output
    assert "fine\nrc 0" in output


def test_report_folder_elsewhere(place: Place) -> None:
    place.run("srun", f"{WATCH}=dir=reports/today", "sleep", "0.8")
    assert len(list(place.path.glob("reports/today/ncclmon-*/monitor.log"))) == 1


# ---- the job's own input and output


def test_standard_input_goes_to_the_tasks(place: Place) -> None:
    result = place.run("srun", WATCH, place.when_watched, "cat", stdin="x\n")
    assert (result.returncode, result.stdout, result.stderr) == (0, "x\n", "")


def test_output_pipe_closes_with_srun(place: Place) -> None:
    shell = f"srun {WATCH} {place.when_watched} echo x 2>&1 | cat"
    started = time.monotonic()
    result = place.run("bash", "-c", shell, env={"NCCLMON_STANDIN": "deaf"})
    assert result.stdout == "x\n"
    assert time.monotonic() - started < 3
    wait_until(lambda: not place.helpers(), "no process of ours is left", 20)


def test_srun_without_standard_files(place: Place) -> None:
    result = place.run("bash", "-c", f"srun {WATCH} {place.when_watched} touch here <&- >&- 2>&-")
    assert result.returncode == 0
    assert (place.path / "here").exists()
    wait_until(lambda: not place.helpers(), "no process of ours is left")


# ---- last, as it takes a minute


def test_time_limit(job_with_time_limit: Place) -> None:
    place = job_with_time_limit
    job = job_of(place)
    wait_until(lambda: "JobState=TIMEOUT" in place.run("scontrol", "show", "job", job).stdout, "out of time", 120)
    wait_until(lambda: not place.helpers() and not place.steps(job), "nothing is left")
