"""Which ranks form which group: tensor, data and pipeline parallelism, with tensor ranks next to each other."""

from __future__ import annotations


def groups(world_size: int, tensor: int, pipeline: int) -> dict[str, list[list[int]]]:
    """Group kind -> lists of ranks, for `tensor` x data x `pipeline` = `world_size`.

    rank = t + tensor * (d + data * p). Groups of one rank are left out. ValueError if the sizes do not divide the world.
    """
    if world_size % (tensor * pipeline):
        raise ValueError(f"{world_size} ranks cannot be divided into tensor {tensor} x pipeline {pipeline}")
    data = world_size // (tensor * pipeline)

    def at(t: int, d: int, p: int) -> int:
        return t + tensor * (d + data * p)

    made = {
        "world": [list(range(world_size))],
        "tp": [[at(t, d, p) for t in range(tensor)] for p in range(pipeline) for d in range(data)],
        "dp": [[at(t, d, p) for d in range(data)] for p in range(pipeline) for t in range(tensor)],
        "pp": [[at(t, d, p) for p in range(pipeline)] for d in range(data) for t in range(tensor)],
    }
    return {kind: lists for kind, lists in made.items() if len(lists[0]) > 1}
