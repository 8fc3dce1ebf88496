"""MAHIA-X model small enough for exact comparisons, and batches for it."""

import dataclasses

import torch

from models import FAMILIES

MAHIA = FAMILIES["mahia"]
SMALL = MAHIA.configure(
    "tiny",
    {
        "vocab_size": 20,
        "text_seq_len": 9,
        "tab_dim": 5,
        "output_dim": 3,
        "embed_dim": 16,
        "tab_hidden_dim": 8,
        "fused_dim": 12,
        "memory_size": 6,
        "max_layers": 3,
        "n_experts": 4,
    },
)


def varied(**fields):
    return dataclasses.replace(SMALL, **fields)


def drawn(config, batch=6, sequence=None, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return MAHIA.draw(config, batch, sequence or config.text_seq_len, generator)
