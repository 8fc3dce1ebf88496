"""Data parallelism: one step on several devices, a process each, this one being rank 0.

Every rank builds the same arm from the same seed and takes its share of each batch; gradients are
averaged over the ranks, so that all of them make the update that one device would have made of the
whole batch (of the mean of the shares' losses, where a loss is not a mean itself). Rank 0 measures,
checks and tells; the others, its peers, do what it says.
"""
