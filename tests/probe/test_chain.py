"""A user's own profiler plugin behind the probe: both see all that they asked for, each with its own handles."""

from __future__ import annotations

import os
import subprocess

import pytest

from .conftest import TRACES, Probe


@pytest.mark.parametrize("interface", ["5", "6"])
def test_both_plugins_see_the_recorded_sequence(probe: Probe, interface: str) -> None:
    chain = {"NCCLMON_CHAIN_PLUGIN": str(probe.programs / "witness.so"), "REPLAY_FINALIZE": "1"}
    output = probe.run("replay", str(TRACES / "ok.0"), interface, **chain)
    # of 3 collectives: 3 x (GroupApi, CollApi, KernelLaunch, Group, Coll) and 6 channels' kernels, each with one state
    assert "witness: 21 started, 21 stopped, 12 states, 0 orphans" in output
    frames = probe.frames()
    assert frames.finished.tolist() == [3]
    assert frames.send_done.tolist() == [24]
    assert frames.finalised.all()


def test_the_other_plugin_works_where_there_is_no_folder(probe: Probe) -> None:
    chain = {
        "NCCLMON_CHAIN_PLUGIN": str(probe.programs / "witness.so"),
        "REPLAY_FINALIZE": "1",
        "NCCLMON_PROBE_DIR": "",
    }
    assert "witness: 21 started, 21 stopped" in probe.run("replay", str(TRACES / "ok.0"), "5", **chain)


@pytest.mark.parametrize("other", ["/no/such/plugin.so", "relative.so", "/lib/x86_64-linux-gnu/libc.so.6"])
def test_without_the_other_plugin_the_probe_goes_on(probe: Probe, other: str) -> None:
    probe.run("replay", str(TRACES / "ok.0"), "5", NCCLMON_CHAIN_PLUGIN=other)
    assert probe.frames().finished.tolist() == [3]


@pytest.mark.parametrize("case", ["twice", "missing_stops", "foreign", "invented", "communicators", "reload", "forked"])
def test_abuse_reaches_neither(probe: Probe, case: str) -> None:
    environment = {
        **os.environ,
        "NCCLMON_PROBE_DIR": str(probe.folder),
        "NCCLMON_CHAIN_PLUGIN": str(probe.programs / "witness.so"),
    }
    done = subprocess.run(
        [probe.programs / "abuse", probe.plugin, case],
        env=environment,
        timeout=60,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
