"""One step on several devices, a process each, this one being rank 0.

Data parallelism: every rank builds the same arm from the same seed and takes its share of each
batch; gradients are averaged over the ranks, so that all of them make the update that one device
would have made of the whole batch (of the mean of the shares' losses, where a loss is not a mean
itself). Where asked to, each keeps a share of moments, gradients and weights too (``shards``).
Tensor parallelism: every rank takes the whole batch and has its share of each layer that can be
divided, cut from rank 0's weights. Rank 0 measures, checks and tells; the others, its peers, do
what it says.
"""
