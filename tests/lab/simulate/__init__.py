"""The fault simulator: seeded jobs of any size and parallel layout, what goes wrong in them, and what RAS and nodes then tell.

Nothing is painted: ranks run programs of collectives over communicators (steps.py) and block as NCCL does (machine.py), so who
waits for whom, who leads and who is a victim follow from the model. `python -m tests.lab.simulate --list` names the cases.
"""
