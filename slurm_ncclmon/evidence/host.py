"""Facts of the machine rather than of its processes: addresses, GPUs, network counters, kernel messages."""

from __future__ import annotations

import contextlib
import ipaddress
from dataclasses import dataclass, field
from pathlib import Path

from slurm_ncclmon.evidence.counters import read_counters
from slurm_ncclmon.evidence.gpu import ask_gpus
from slurm_ncclmon.evidence.kernel_log import recent_events
from slurm_ncclmon.evidence.model import GpuReport


@dataclass(frozen=True)
class HostFacts:
    """All of it; empty where a machine has no such thing."""

    addresses: tuple[str, ...] = ()
    gpus: tuple[GpuReport, ...] = ()
    counters: dict[str, int] = field(default_factory=dict)
    events: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


def host_facts(with_gpus: bool, seconds: float) -> HostFacts:
    """Read everything; only the GPU driver can take long, and it is given `seconds`."""
    gpus, problems = ask_gpus(seconds) if with_gpus else ((), ())
    return HostFacts(
        addresses=own_addresses(), gpus=gpus, counters=read_counters(), events=recent_events(), problems=problems
    )


def own_addresses(net: Path = Path("/proc/net")) -> tuple[str, ...]:
    """The machine's IP addresses from the kernel's tables, without loopback and link-local ones."""
    found: dict[ipaddress.IPv4Address | ipaddress.IPv6Address, None] = {}
    found.update(dict.fromkeys(_ipv4(net / "fib_trie")))
    found.update(dict.fromkeys(_ipv6(net / "if_inet6")))
    return tuple(str(address) for address in found if not (address.is_loopback or address.is_link_local))


def _ipv4(trie: Path) -> list[ipaddress.IPv4Address]:
    """Leaves of the routing trie marked `/32 host LOCAL` are the machine's own addresses."""
    found = []
    leaf = ""
    with contextlib.suppress(OSError):
        for line in trie.read_text(encoding="ascii", errors="replace").splitlines():
            words = line.split()
            if len(words) == 2 and words[0] in ("|--", "+--"):
                leaf = words[1]
            elif words[:3] == ["/32", "host", "LOCAL"]:
                with contextlib.suppress(ValueError):
                    found.append(ipaddress.IPv4Address(leaf))
    return found


def _ipv6(table: Path) -> list[ipaddress.IPv6Address]:
    found = []
    with contextlib.suppress(OSError):
        for line in table.read_text(encoding="ascii", errors="replace").splitlines():
            with contextlib.suppress(ValueError, IndexError):
                found.append(ipaddress.IPv6Address(int(line.split()[0], 16)))
    return found
