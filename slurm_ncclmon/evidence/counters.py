"""Counters of network ports from /sys: what a silent link problem leaves behind.

Read twice, the difference says more than the value.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

SYS = Path("/sys/class")

_IB_TRAFFIC = "port_xmit_data port_rcv_data port_xmit_wait np_cnp_sent rp_cnp_handled"
_IB_TROUBLE = (
    "port_xmit_discards port_rcv_errors symbol_error link_error_recovery link_downed local_link_integrity_errors VL15_dropped "
    "excessive_buffer_overrun_errors packet_seq_err out_of_sequence local_ack_timeout_err rnr_nak_retry_err "
    "implied_nak_seq_err roce_adp_retrans roce_slow_restart out_of_buffer duplicate_request"
)
_NET_TRAFFIC = "rx_bytes tx_bytes"
_NET_TROUBLE = "rx_errors tx_errors rx_dropped tx_dropped rx_crc_errors tx_carrier_errors"
_INFINIBAND = frozenset(f"{_IB_TRAFFIC} {_IB_TROUBLE}".split())
_ETHERNET = frozenset(f"{_NET_TRAFFIC} {_NET_TROUBLE}".split())
_TRAFFIC = frozenset(f"{_IB_TRAFFIC} {_NET_TRAFFIC}".split())
_MOST = 512


def read_counters(root: Path = SYS) -> dict[str, int]:
    """`device/port/counter` or `interface/counter` -> value. Error counters that stand at nought are left out."""
    found: dict[str, int] = {}
    for name, path in [*_infiniband(root / "infiniband"), *_ethernet(root / "net")]:
        with contextlib.suppress(OSError, ValueError):
            value = int(path.read_text(encoding="ascii"))
            if value or path.name in _TRAFFIC:
                found[name] = value
        if len(found) >= _MOST:
            break
    return found


def changes(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """Counters that rose, by how much; one that was not there before counts from nought."""
    return {name: value - before.get(name, 0) for name, value in after.items() if value > before.get(name, 0)}


def _infiniband(root: Path) -> Iterator[tuple[str, Path]]:
    for folder in sorted([*root.glob("*/ports/*/counters"), *root.glob("*/ports/*/hw_counters")]):
        device, port = folder.parts[-4], folder.parts[-2]
        for path in sorted(folder.iterdir()):
            if path.name in _INFINIBAND:
                yield f"{device}/{port}/{path.name}", path


def _ethernet(root: Path) -> Iterator[tuple[str, Path]]:
    for folder in sorted(root.glob("*/statistics")):
        # Virtual interfaces (bridges, containers) have no device behind them.
        if (folder.parent / "device").exists():
            for path in sorted(folder.iterdir()):
                if path.name in _ETHERNET:
                    yield f"{folder.parts[-2]}/{path.name}", path
