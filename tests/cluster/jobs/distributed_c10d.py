"""A collective that lasts: the place where healthy ranks stand. The name of the file is PyTorch's, as a stack shows it."""

import time


def all_reduce(tick):
    while True:
        tick()
        time.sleep(0.1)
