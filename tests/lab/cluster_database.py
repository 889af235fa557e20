"""Accounting for a cluster: a private MariaDB, slurmdbd on it, and the cluster's and user's records."""

from __future__ import annotations

import os
import pwd
import secrets
import subprocess
from typing import TYPE_CHECKING

from .cluster_files import Plan, slurmdbd_conf

if TYPE_CHECKING:
    from .cluster import Cluster


def start(cluster: Cluster, plan: Plan, deadline: float) -> None:
    """Starts MariaDB and slurmdbd (must happen before slurmctld, whose records they keep)."""
    password = secrets.token_hex(16)
    _start_mariadb(cluster, plan, password, deadline)
    conf = plan.folder / "slurmdbd.conf"
    conf.touch(mode=0o600)
    conf.write_text(slurmdbd_conf(plan, password))
    slurm = pwd.getpwnam("slurm")
    os.chown(conf, slurm.pw_uid, slurm.pw_gid)
    # slurmdbd looks for its file beside SLURM_CONF
    cluster.spawn("slurmdbd", ["/usr/sbin/slurmdbd", "-D"])
    add_cluster = ["sacctmgr", "-i", "add", "cluster", plan.name]
    cluster.wait_for("slurmdbd", lambda: cluster.run(add_cluster, root=True).returncode == 0, deadline)
    for command in (["account", "lab", f"Cluster={plan.name}"], ["user", "ncclmon", "Account=lab"]):
        cluster.run(["sacctmgr", "-i", "add", *command], root=True)


def _start_mariadb(cluster: Cluster, plan: Plan, password: str, deadline: float) -> None:
    folder, data = plan.folder / "mariadb", plan.folder / "mariadb" / "data"
    mysql = pwd.getpwnam("mysql")
    for path in (folder, data):
        path.mkdir(mode=0o700)
        os.chown(path, mysql.pw_uid, mysql.pw_gid)
    place = ["--no-defaults", f"--datadir={data}", "--user=mysql"]
    install = ["mariadb-install-db", *place, "--auth-root-authentication-method=normal", "--skip-test-db"]
    with (plan.folder / "log" / "mariadb.out").open("ab") as log:
        subprocess.run(install, stdout=log, stderr=log, check=True, timeout=60, env=cluster.environment(root=True))
    sock = folder / "socket"
    lean = [
        "--skip-log-bin",
        "--innodb-flush-log-at-trx-commit=0",
        "--innodb-doublewrite=0",
        "--innodb-buffer-pool-size=32M",
    ]
    listen = [f"--socket={sock}", "--bind-address=127.0.0.1", f"--port={plan.ports[2]}", "--skip-name-resolve"]
    cluster.spawn("mariadb", ["/usr/sbin/mariadbd", *place, *listen, *lean, f"--pid-file={folder}/pid"])
    statements = (
        f"CREATE USER slurm@'127.0.0.1' IDENTIFIED BY '{password}'; "
        "CREATE DATABASE slurm_acct; GRANT ALL ON slurm_acct.* TO slurm@'127.0.0.1';"
    )
    client = ["mariadb", "--no-defaults", f"--socket={sock}", "--user=root"]
    cluster.wait_for("mariadb", lambda: cluster.run([*client, "-e", "SELECT 1"], root=True).returncode == 0, deadline)
    cluster.run(client, root=True, stdin=statements)
