"""A real Slurm cluster on this machine: munged, slurmctld, one slurmd a node and, if asked for, slurmdbd with its own MariaDB.

Everything lies in /var/tmp/ncclmon-NAME and on own ports, so that several clusters live side by side and `down` can
remove each without a trace. Must run as root, because jobs run as an ordinary user.
"""

from __future__ import annotations

import fcntl
import json
import os
import pwd
import random
import re
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Callable

from . import cluster_database, processes
from .cluster_files import GPUS_PER_NODE, Plan, cgroup_conf, gres_conf, plugstack_conf, slurm_conf

BASE = Path("/var/tmp")
PREFIX = Path(os.environ.get("NCCLMON_PREFIX", "/opt/slurm-ncclmon"))
PORTS = range(12000, 19900)  # below the kernel's ephemeral ports and the ports that steps get for RAS
TEST_USER = "ncclmon"


class ClusterError(RuntimeError):
    """A cluster could not be started, changed or removed; the text holds the last lines of the logs."""


class Cluster:
    """One cluster. `Cluster(NAME)` names it, whether it runs or not; `up` starts it and `down` removes it."""

    def __init__(self, name: str = "main") -> None:
        if not re.fullmatch(r"[a-z][a-z0-9]{0,20}", name):
            raise ClusterError(f"a cluster's name is 1 to 21 lower-case letters and digits, not {name!r}")
        self.name = name
        self.folder = BASE / f"ncclmon-{name}"
        self._started: dict[str, subprocess.Popen[bytes]] = {}  # daemons that are children of this process

    # ---- what it is made of

    @property
    def plan(self) -> Plan:
        """The plan that `up` wrote; ClusterError if there is no such cluster."""
        try:
            fields = json.loads((self.folder / "plan.json").read_text())
        except FileNotFoundError:
            raise ClusterError(
                f"there is no cluster {self.name!r}: start it with scripts/cluster up --name {self.name}"
            ) from None
        plugin = fields["plugin"] and Path(fields["plugin"])
        return Plan(**{**fields, "folder": Path(fields["folder"]), "plugin": plugin})

    @property
    def home(self) -> Path:
        """The test user's home folder."""
        return self.folder / "home"

    @property
    def nodes(self) -> list[str]:
        return self.plan.nodes

    def _write_plan(self, plan: Plan) -> None:
        _write(self.folder / "plan.json", json.dumps(asdict(plan), default=str, indent=1))
        _write(plan.slurm_conf, slurm_conf(plan))
        _write(self.folder / "gres.conf", gres_conf(plan))
        _write(self.folder / "cgroup.conf", cgroup_conf())
        _write(self.folder / "plugstack.conf", plugstack_conf(plan))

    # ---- up and down

    def up(
        self,
        nodes: int = 4,
        accounting: bool = False,
        plugin: bool = True,
        plugin_args: str = "",
        extra_conf: Sequence[str] = (),
        timeout_s: float = 60.0,
    ) -> Cluster:
        """Starts it and waits until every node is idle.

        `plugin_args` is the rest of our line in plugstack.conf, `extra_conf` are lines for slurm.conf. If anything fails,
        what was started is removed again and ClusterError says which daemon failed, with its log's last lines.
        """
        if os.geteuid() != 0:
            raise ClusterError("only root can start a cluster whose jobs run as another user")
        deadline = time.monotonic() + timeout_s
        plan = self._make_folder(nodes, accounting, plugin, plugin_args, list(extra_conf))
        try:
            self._start_munged(plan, deadline)
            if accounting:
                cluster_database.start(self, plan, deadline)
            self.start("slurmctld", deadline=deadline)
            for node in plan.nodes:
                self.start(f"slurmd-{node}", deadline=deadline)
            self._wait_for_nodes(deadline)
        except BaseException:
            self.down()
            raise
        return self

    def down(self) -> None:
        """Kills every process of the cluster, jobs included, and removes its folder; fine if there is none."""
        remaining = processes.kill_all(self.folder)
        for child in self._started.values():
            child.wait(timeout=10)
        self._started.clear()
        shutil.rmtree(self.folder, ignore_errors=True)
        if remaining or self.folder.exists():
            raise ClusterError(
                f"could not remove cluster {self.name!r}: processes {sorted(remaining)}, folder {self.folder}"
            )

    def _make_folder(self, nodes: int, accounting: bool, plugin: bool, plugin_args: str, extra_conf: list[str]) -> Plan:
        library = PREFIX / "lib" / "ncclmon" / "spank_ncclmon.so"
        with _machine_lock():
            user = ensure_user(TEST_USER)
            try:
                self.folder.mkdir(mode=0o755)
            except FileExistsError:
                raise ClusterError(f"cluster {self.name!r} exists: scripts/cluster down --name {self.name}") from None
            plan = Plan(
                name=self.name,
                folder=self.folder,
                hostname=socket.gethostname().split(".")[0],
                nodes=[f"n{i + 1}" for i in range(nodes)],
                ports=free_ports(3 + nodes),
                accounting=accounting,
                plugin=library if plugin and library.exists() else None,
                plugin_args=plugin_args,
                extra_conf=extra_conf,
            )
            self._write_plan(plan)
        slurm = pwd.getpwnam("slurm")
        for name in ("log", "run", "state"):
            _make_owned(self.folder / name, slurm)
        for name in ("munge", "gpu", "spool", *[f"spool/{node}" for node in plan.nodes]):
            (self.folder / name).mkdir(mode=0o755)
        for gpu in range(GPUS_PER_NODE):
            (self.folder / "gpu" / str(gpu)).touch()
        _make_owned(plan.home, user)
        return plan

    # ---- daemons

    def start(self, daemon: str, deadline: float | None = None) -> None:
        """Starts one daemon: slurmctld or slurmd-NODE. ClusterError if it ends within its first moments."""
        plan = self.plan
        program, _, node = daemon.partition("-")
        command = [f"/usr/sbin/{program}", "-D", "-f", str(plan.slurm_conf), *(["-N", node] if node else [])]
        self.spawn(daemon, command)
        if program == "slurmctld":
            self.wait_for(daemon, lambda: self._succeeds("scontrol", "ping"), deadline)

    def spawn(self, daemon: str, command: list[str], env: dict[str, str] | None = None) -> None:
        """Starts `command` in the background as the daemon of that name; its output goes to log/DAEMON.out."""
        with (self.folder / "log" / f"{daemon}.out").open("ab") as log:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd=self.folder,
                env={**self._environment(), **(env or {})},
            )  # fmt: skip
        self._started[daemon] = process
        _write(self.folder / "run" / f"{daemon}.started", str(process.pid))

    def pid(self, daemon: str) -> int | None:
        """The daemon's pid, None if it does not run."""
        try:
            pid = int((self.folder / "run" / f"{daemon}.started").read_text())
        except FileNotFoundError:
            return None
        if (
            daemon in self._started
        ):  # our child: no zombie stays, and no doubt whose it is (just started, it has no environment yet)
            return pid if self._started[daemon].poll() is None else None
        ours = f"SLURM_CONF={self.folder}/".encode() in processes.read_bytes(pid, "environ")
        return pid if ours and processes.is_alive(pid) else None

    def stop(self, daemon: str, timeout_s: float = 10.0) -> None:
        """Ends one daemon with SIGTERM as an administrator would; running steps go on."""
        pid = self.pid(daemon)
        if pid is None:
            return
        os.kill(pid, signal.SIGTERM)
        os.kill(pid, signal.SIGCONT)
        self._wait(lambda: self.pid(daemon) is None, time.monotonic() + timeout_s, f"{daemon} does not end", [daemon])

    def pause(self, node: str) -> None:
        """Stops a node's slurmd with SIGSTOP: the node does not answer, its steps go on."""
        self._signal_slurmd(node, signal.SIGSTOP)

    def resume(self, node: str) -> None:
        """Undoes `pause`."""
        self._signal_slurmd(node, signal.SIGCONT)

    def restart(self, plugin_args: str | None = None, daemons: Sequence[str] | None = None) -> None:
        """Restarts daemons (all of Slurm's by default), with other plugin arguments if given, and waits for the nodes."""
        if plugin_args is not None:
            self.set_plugin_args(plugin_args)
        plan = self.plan
        for daemon in daemons or ["slurmctld", *[f"slurmd-{node}" for node in plan.nodes]]:
            self.stop(daemon)
            self.start(daemon)
        self._wait_for_nodes(time.monotonic() + 30, ("idle", "mixed", "allocated"))

    def set_plugin_args(self, plugin_args: str) -> None:
        """Rewrites our line in plugstack.conf. Commands and new steps read it at once; a running slurmd needs `restart`."""
        plan = replace(self.plan, plugin_args=plugin_args)
        _write(self.folder / "plan.json", json.dumps(asdict(plan), default=str, indent=1))
        _write(self.folder / "plugstack.conf", plugstack_conf(plan))

    def _signal_slurmd(self, node: str, signum: signal.Signals) -> None:
        pid = self.pid(f"slurmd-{node}")
        if pid is None:
            raise ClusterError(f"no slurmd runs for node {node!r}; nodes: {', '.join(self.nodes)}")
        os.kill(pid, signum)

    def _start_munged(self, plan: Plan, deadline: float) -> None:
        folder = self.folder / "munge"
        key = folder / "key"
        key.touch(mode=0o400)
        key.write_bytes(secrets.token_bytes(128))
        files = [f"--{kind}-file={folder}/{kind}" for kind in ("key", "log", "pid", "seed")]
        self.spawn("munged", ["/usr/sbin/munged", "--foreground", f"--socket={plan.munge_socket}", *files])
        self.wait_for("munged", plan.munge_socket.exists, deadline)

    # ---- waiting, and what to say when it was in vain

    def wait_for(self, daemon: str, condition: Callable[[], bool], deadline: float | None = None) -> None:
        """Waits until the daemon that was just started is of use; ClusterError with its log if it ends or takes too long."""

        def ready() -> bool:
            if self.pid(daemon) is None:
                raise ClusterError(f"{daemon} ended right after its start\n{self.log_tails([daemon])}")
            return condition()

        self._wait(ready, deadline or time.monotonic() + 30, f"{daemon} does not answer", [daemon])

    def _wait_for_nodes(self, deadline: float, states: Sequence[str] = ("idle",)) -> None:
        daemons = [f"slurmd-{node}" for node in self.nodes]

        def ready() -> bool:
            dead = [daemon for daemon in daemons if self.pid(daemon) is None]
            if dead:
                raise ClusterError(f"ended: {', '.join(dead)}\n{self.log_tails(dead)}")
            return all(state in states for state in self.node_states().values())

        self._wait(ready, deadline, "not all nodes became idle", ["slurmctld", *daemons])

    def _wait(self, condition: Callable[[], bool], deadline: float, complaint: str, daemons: Sequence[str]) -> None:
        while not condition():
            if time.monotonic() > deadline:
                raise ClusterError(f"{complaint}\nnodes: {self.node_states()}\n{self.log_tails(daemons)}")
            time.sleep(0.05)

    def node_states(self) -> dict[str, str]:
        """Node name -> state as sinfo has it (`idle`, `idle*` if it does not answer); empty without a controller."""
        result = self.run(["sinfo", "-h", "-N", "-o", "%N %T"], root=True, timeout_s=15)
        return (
            dict(line.split() for line in result.stdout.splitlines())
            if result.returncode == 0
            else {"sinfo": result.stderr}
        )

    def log_tails(self, daemons: Sequence[str], lines: int = 12) -> str:
        """The last lines of those daemons' logs, for messages."""
        parts = []
        for daemon in daemons:
            for suffix in ("log", "out"):
                path = self.folder / "log" / f"{daemon}.{suffix}"
                text = path.read_text(errors="replace") if path.exists() else ""
                if text:
                    parts.append(f"--- {path}\n" + "\n".join(text.splitlines()[-lines:]))
        return "\n".join(parts)

    # ---- commands on it

    def environment(self, root: bool = False) -> dict[str, str]:
        """The environment of a command that works with this cluster."""
        return {
            **self._environment(),
            "HOME": "/root" if root else str(self.home),
            "USER": "root" if root else TEST_USER,
        }

    def _environment(self) -> dict[str, str]:
        path = f"{PREFIX}/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        return {
            "PATH": path, "LANG": "C.UTF-8", "SLURM_CONF": f"{self.folder}/slurm.conf", "NCCLMON_PREFIX": str(PREFIX),
            **({"TERM": os.environ["TERM"]} if "TERM" in os.environ else {}),
        }  # fmt: skip

    def popen(self, command: Sequence[str], root: bool = False, cwd: Path | None = None, env: dict[str, str] | None = None,
              **kwargs: Any) -> subprocess.Popen[Any]:  # fmt: skip
        """Starts a command as the test user, or as root, in its home folder; other arguments as of subprocess.Popen."""
        if not root:
            user = pwd.getpwnam(TEST_USER)
            kwargs.update(user=user.pw_uid, group=user.pw_gid, extra_groups=[], umask=0o022)
        where = cwd or (self.plan.folder if root else self.plan.home)
        return subprocess.Popen(list(command), cwd=where, env={**self.environment(root), **(env or {})}, **kwargs)

    def run(self, command: Sequence[str], root: bool = False, timeout_s: float = 60.0, cwd: Path | None = None,
            env: dict[str, str] | None = None, stdin: str = "") -> subprocess.CompletedProcess[str]:  # fmt: skip
        """Runs a command to its end and returns its output as text; subprocess.TimeoutExpired if it takes too long."""
        pipe = subprocess.PIPE
        with self.popen(command, root, cwd, env, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
            try:
                out, err = process.communicate(stdin, timeout=timeout_s)
            except BaseException:
                process.kill()
                raise
        return subprocess.CompletedProcess(list(command), process.returncode, out, err)

    def _succeeds(self, *command: str) -> bool:
        result = self.run(command, root=True, timeout_s=30)
        return result.returncode == 0 and "DOWN" not in result.stdout


def existing() -> list[Cluster]:
    """All clusters of this machine that have a folder."""
    return [
        Cluster(path.name[len("ncclmon-") :])
        for path in sorted(BASE.glob("ncclmon-*"))
        if (path / "plan.json").exists()
    ]


def ensure_user(name: str) -> pwd.struct_passwd:
    """The ordinary user of that name, created without password and home folder if there is none."""
    try:
        return pwd.getpwnam(name)
    except KeyError:
        command = ["/usr/sbin/useradd", "--no-create-home", "--home-dir", "/nonexistent", "--shell", "/bin/bash", name]
        subprocess.run(command, check=True, timeout=30)
        return pwd.getpwnam(name)


def free_ports(count: int) -> list[int]:
    """`count` TCP ports that nobody listens on and no other cluster's plan has."""
    taken = {port for cluster in existing() for port in cluster.plan.ports}
    ports: list[int] = []
    for port in random.sample(PORTS, len(PORTS)):
        if len(ports) == count:
            break
        if port not in taken and _is_free(port):
            ports.append(port)
    return ports


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


@contextmanager
def _machine_lock() -> Iterator[None]:
    """One at a time on this machine, by a lock on the folder that holds all clusters."""
    descriptor = os.open(BASE, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _write(path: Path, text: str) -> None:
    """Replaces a file in one step, so that a daemon never reads half of it."""
    part = path.with_name(path.name + ".part")
    part.write_text(text)
    part.replace(path)


def _make_owned(folder: Path, user: pwd.struct_passwd) -> None:
    folder.mkdir(mode=0o755)
    os.chown(folder, user.pw_uid, user.pw_gid)
