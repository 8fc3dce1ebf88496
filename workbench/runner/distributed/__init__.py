"""Training steps on several ranks, by torch's distributed engine.

Rank 0 is the runner's own process. It measures, checks and reports; the other ranks are workers
that follow its messages. Ranks meet with ``env://``: the first configuration that needs them starts
workers on this host, or ``torchrun`` or ``srun`` have started them from outside, also on several
hosts.
"""
