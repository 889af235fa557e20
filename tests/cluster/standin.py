"""A stand-in for the monitor, and a folder of the test user's in which a test runs watched steps.

The stand-in says what it was given and waits for the end of its standard input; NCCLMON_STANDIN makes it misbehave.
"""

from __future__ import annotations

import os
import pwd
import subprocess
import time
from pathlib import Path
from typing import Callable

from tests.lab.cluster import TEST_USER, Cluster

MONITOR = """#!/bin/bash
echo "start $*"
echo "on $SLURMD_NODENAME as $SLURM_JOB_ID.$SLURM_STEP_ID, option $SLURM_NCCL_HANG_DETECT, folder $NCCLMON_REPORT_DIR"
case $NCCLMON_STANDIN in
[0-9]*) exit "$NCCLMON_STANDIN" ;;
crash) kill -SEGV $$ ;;
early) exit 86 ;;
cancel) scancel "$2"; cat > /dev/null; exit 86 ;;
flood) yes "$(head -c 4000 /dev/zero | tr '\\0' x)" | head -c 300M; touch flooded ;;
term) trap 'echo told; exit 3' TERM; while :; do sleep 0.1; done ;;
deaf) trap '' TERM; while :; do sleep 0.2; done ;;
fanout) srun --overlap --jobid="$SLURM_JOB_ID" -N1 -n1 bash -c 'sleep 1; echo "fanout $NCCL_RAS_ADDR"' ;;
esac
cat > /dev/null
echo end
"""

# Becomes the command that follows once the monitor of this step runs.
WHEN_WATCHED = """#!/bin/bash
for _ in $(seq 200); do
    grep -qs ^start "ncclmon-$SLURM_JOB_ID.$SLURM_STEP_ID/monitor.log" && exec "$@"
    sleep 0.05
done
exit 99
"""


def install(folder: Path) -> Path:
    """Writes both scripts where every user can run them; returns the monitor's path."""
    for name, text in (("monitor", MONITOR), ("when-watched", WHEN_WATCHED)):
        path = folder / name
        path.write_text(text)
        path.chmod(0o755)
    return folder / "monitor"


def wait_until(condition: Callable[[], object], what: str, timeout_s: float = 10.0) -> None:
    """Polls until `condition` holds; AssertionError with `what` when it does not in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not in {timeout_s} s: {what}"
        time.sleep(0.05)


class Place:
    """A test's own folder on a cluster: what runs there writes its reports there."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster = cluster
        self.path = cluster.home / name
        self.path.mkdir()
        user = pwd.getpwnam(TEST_USER)
        os.chown(self.path, user.pw_uid, user.pw_gid)
        self.when_watched = str(cluster.folder / "when-watched")

    def run(
        self, *command: str, env: dict[str, str] | None = None, stdin: str = "", timeout_s: float = 30.0
    ) -> subprocess.CompletedProcess[str]:
        return self.cluster.run(command, cwd=self.path, env=env, stdin=stdin, timeout_s=timeout_s)

    def popen(self, *command: str, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
        return self.cluster.popen(
            command, cwd=self.path, env=env, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip

    def batch(self, body: str, *options: str, env: dict[str, str] | None = None, timeout_s: float = 60.0) -> str:
        """Runs a batch job to its end; `body` is its script without the first line. Returns its output."""
        (self.path / "job.sh").write_text(f"#!/bin/bash\n{body}\n")
        result = self.run("sbatch", "-W", "-o", "out", *options, "job.sh", env=env, timeout_s=timeout_s)
        output = self.path / "out"
        return (output.read_text() if output.exists() else "") + result.stderr

    def folders(self) -> list[str]:
        """Names of the report folders, oldest step first."""
        return [path.name for path in sorted(self.path.glob("**/ncclmon-*"), key=lambda path: path.stat().st_ctime_ns)]

    def logs(self) -> list[str]:
        """The monitors' logs, in the order of `folders`."""
        return [next(self.path.glob(f"**/{name}/monitor.log")).read_text() for name in self.folders()]

    def only_log(self) -> str:
        logs = self.logs()
        assert len(logs) == 1, self.folders()
        return logs[0]

    def wait_for_log(self, text: str, count: int = 1, timeout_s: float = 10.0) -> None:
        """Waits until that many monitors have said so."""

        def said() -> bool:
            return sum(text in log for log in self._readable_logs()) >= count

        wait_until(said, f"{count} times {text!r} in the logs", timeout_s)

    def _readable_logs(self) -> list[str]:
        return [path.read_text() for path in self.path.glob("**/ncclmon-*/monitor.log")]

    def steps(self, job: str) -> list[str]:
        """Steps of a job that still exist."""
        return self.run("squeue", "-h", "-s", "-j", job, "-o", "%i").stdout.split()

    def helpers(self) -> list[int]:
        """Processes of ours on this machine that run in this folder: ncclmon-step and what it has started."""
        pids = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                inside = (process / "cwd").resolve() == self.path
                command = (process / "cmdline").read_bytes()
            except OSError:
                continue
            if inside and (command.startswith(b"ncclmon-step") or b"--job-name=ncclmon" in command):
                pids.append(int(process.name))
        return pids
