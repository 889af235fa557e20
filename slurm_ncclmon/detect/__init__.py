"""From reports to what stands still, since when, and what of it is ordinary. Pure functions of recorded facts."""
