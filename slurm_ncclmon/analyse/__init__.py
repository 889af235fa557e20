"""From what stands still to who is to blame: wait-for graph, causes, verdicts in the making. Pure functions of recorded facts."""
