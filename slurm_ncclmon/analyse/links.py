"""The links of a communicator as probe frames show them: from wait states to the frontier's input and room."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slurm_ncclmon.analyse.frontier import Links, frontier, torn_links
from slurm_ncclmon.probe.frame import Frames
from slurm_ncclmon.probe.layout import (
    CHANNELS,
    WAIT_RECV_GPU,
    WAIT_RECV_NETWORK,
    WAIT_SEND_GPU,
    WAIT_SEND_NETWORK,
    WAIT_SEND_PEER,
)

Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Stop:
    """Where the data stopped: rows of frames whose own GPU does not go on, and links (row, row) that do not deliver."""

    gpus: Numbers
    links: tuple[tuple[int, int], ...]
    silent: Numbers
    """Rows whose network thread takes no more although their GPU wants to: a peer waits for them to post a buffer."""
    channels: int
    """Channels that showed it."""


def find_stop(frames: Frames, unfinished: NDArray[np.bool_]) -> Stop:
    """Where the collective of the communicator whose members are the rows of `frames` stopped; only links over the network show.

    A rank is at the frontier of a channel where what has arrived waits for its GPU and its GPU has room to send. A rank whose
    input comes by NVLink or shared memory is not judged, for whether it has any does not show.
    """
    row_of = np.full(int(frames.size.max()) + 1, -1)
    row_of[frames.rank] = np.arange(len(frames))
    sender, channel = np.nonzero(frames.send.peer >= 0)
    receiver = row_of[np.clip(frames.send.peer[sender, channel], 0, len(row_of) - 1)]
    both = receiver >= 0
    sender, channel, receiver = sender[both], channel[both], receiver[both]
    matched = frames.receive.peer[receiver, channel] == frames.rank[sender]
    sender, channel, receiver = sender[matched], channel[matched], receiver[matched]
    at_sender, at_receiver = frames.send.wait[sender, channel], frames.receive.wait[receiver, channel]
    arrived = (at_receiver == WAIT_RECV_GPU) | (frames.receive.moved[receiver, channel] > 0)
    per_channel = Links(
        source=sender * CHANNELS + channel,
        target=receiver * CHANNELS + channel,
        arrived=arrived,
        slot=at_sender == WAIT_SEND_GPU,
    )
    ends = frontier(len(frames) * CHANNELS, per_channel, np.repeat(unfinished, CHANNELS))
    ends = ends[np.isin(ends, per_channel.target)]
    gpus, count = np.unique(ends // CHANNELS, return_counts=True)
    flying = _in_flight(frames, sender, receiver, channel) | (at_sender == WAIT_SEND_NETWORK)
    torn = torn_links(per_channel, flying & (at_receiver == WAIT_RECV_NETWORK))
    links = sorted({(int(sender[e]), int(receiver[e])) for e in torn})
    unposted = (at_sender == WAIT_SEND_PEER) & (frames.receive.posted[receiver, channel] == 0) & ~arrived
    seen = len(np.unique(channel[torn])) if links else int(count.max()) if len(count) else 0
    return Stop(gpus, tuple(links), np.unique(receiver[unposted]), seen)


def _in_flight(frames: Frames, sender: Numbers, receiver: Numbers, channel: Numbers) -> NDArray[np.bool_]:
    """Whether the sender is done with more steps than have come to the receiver; where no step was lost to the records."""
    sent = frames.send.done[sender, channel].astype(np.int64) + frames.send.moved[sender, channel]
    came = frames.receive.done[receiver, channel].astype(np.int64) + frames.receive.moved[receiver, channel]
    ahead = (sent - came) % (1 << 32)
    trusted = (frames.lost_steps[sender] == 0) & (frames.lost_steps[receiver] == 0)
    flying: NDArray[np.bool_] = trusted & (ahead > 0) & (ahead < 1 << 16)
    return flying
