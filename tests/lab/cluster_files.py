"""The text of a cluster's configuration files, as pure functions of its plan."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

CPUS_PER_NODE = 32  # said to Slurm whatever the machine has, so that 64 ranks fit on two nodes
MEMORY_PER_NODE_MB = 16000
GPUS_PER_NODE = 4


@dataclass(frozen=True)
class Plan:
    """What a cluster is made of; everything else follows from it."""

    name: str
    folder: Path
    hostname: str
    nodes: list[str]
    ports: list[int]  # slurmctld, slurmdbd, MariaDB, then one a node
    accounting: bool
    plugin: Path | None  # spank_ncclmon.so, None for a cluster without it
    plugin_args: str
    extra_conf: list[str]  # lines for slurm.conf that come last

    @property
    def slurm_conf(self) -> Path:
        return self.folder / "slurm.conf"

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def munge_socket(self) -> Path:
        return self.folder / "munge" / "socket"


def slurm_conf(plan: Plan) -> str:
    """slurm.conf: one controller, the nodes on loopback, cores, memory and (plain-file) GPUs as consumable resources."""
    f = plan.folder
    lines = [
        f"ClusterName={plan.name}",
        f"SlurmctldHost={plan.hostname}(127.0.0.1)",
        f"SlurmctldPort={plan.ports[0]}",
        "SlurmUser=slurm",
        "AuthType=auth/munge",
        f"AuthInfo=socket={plan.munge_socket}",
        f"StateSaveLocation={f}/state",
        f"SlurmdSpoolDir={f}/spool/%n",
        f"SlurmctldPidFile={f}/run/slurmctld.pid",
        f"SlurmdPidFile={f}/run/slurmd-%n.pid",
        f"SlurmctldLogFile={f}/log/slurmctld.log",
        f"SlurmdLogFile={f}/log/slurmd-%n.log",
        f"PlugStackConfig={f}/plugstack.conf",
        "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/none",
        "JobAcctGatherType=jobacct_gather/linux",
        "MpiDefault=none",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_Core_Memory",
        "DefMemPerCPU=100",
        "GresTypes=gpu",
        "SchedulerParameters=batch_sched_delay=0,bf_interval=1",
        "SlurmdParameters=config_overrides",
        "ReturnToService=2",
        "KillWait=5",
        *_accounting_lines(plan),
        *[
            f"NodeName={node} NodeHostname={plan.hostname} NodeAddr=127.0.0.1 Port={port} Sockets=1 ThreadsPerCore=1 "
            f"CoresPerSocket={CPUS_PER_NODE} RealMemory={MEMORY_PER_NODE_MB} Gres=gpu:{GPUS_PER_NODE} State=UNKNOWN"
            for node, port in zip(plan.nodes, plan.ports[3:])
        ],
        f"PartitionName=main Nodes={','.join(plan.nodes)} Default=YES MaxTime=INFINITE State=UP",
        *plan.extra_conf,
    ]
    return "\n".join(lines) + "\n"


def _accounting_lines(plan: Plan) -> list[str]:
    if not plan.accounting:
        return ["AccountingStorageType=accounting_storage/none"]
    return [
        "AccountingStorageType=accounting_storage/slurmdbd",
        "AccountingStorageHost=127.0.0.1",
        f"AccountingStoragePort={plan.ports[1]}",
        f"AccountingStoragePass={plan.munge_socket}",
        "AccountingStoreFlags=job_comment",
        "AccountingStorageTRES=gres/gpu",
    ]


def slurmdbd_conf(plan: Plan, password: str) -> str:
    """slurmdbd.conf for the private MariaDB."""
    f = plan.folder
    return "\n".join(
        [
            "AuthType=auth/munge",
            f"AuthInfo=socket={plan.munge_socket}",
            "DbdHost=localhost",
            "DbdAddr=127.0.0.1",
            f"DbdPort={plan.ports[1]}",
            "SlurmUser=slurm",
            f"PidFile={f}/run/slurmdbd.pid",
            f"LogFile={f}/log/slurmdbd.log",
            "StorageType=accounting_storage/mysql",
            "StorageHost=127.0.0.1",
            f"StoragePort={plan.ports[2]}",
            "StorageUser=slurm",
            f"StoragePass={password}",
            "StorageLoc=slurm_acct",
            "",
        ]
    )


def gres_conf(plan: Plan) -> str:
    """gres.conf: the GPUs are plain files, enough for allocation and CUDA_VISIBLE_DEVICES' bookkeeping."""
    return f"Name=gpu File={plan.folder}/gpu/[0-{GPUS_PER_NODE - 1}]\n"


def cgroup_conf() -> str:
    """cgroup.conf: nothing here uses cgroups, and the plugin for version 1 is the one that then touches none.

    Left to itself, slurmd would look for what the machine has, end where that is nothing, and ask systemd for a scope
    where that is version 2.
    """
    return "CgroupPlugin=cgroup/v1\n"


def plugstack_conf(plan: Plan) -> str:
    """plugstack.conf: our plugin as a site would enable it, or nothing."""
    if plan.plugin is None:
        return "# no plugin\n"
    return f"optional {plan.plugin} {plan.plugin_args}".rstrip() + "\n"
