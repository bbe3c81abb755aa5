"""Choices of the plot commands; imports no slow modules, since --help needs this one."""

from typing import Literal

XAxis = Literal["step", "minutes"]
"""The horizontal axis of training curves."""
AttentionKind = Literal["cross", "encoder", "decoder"]
"""Attention of the decoder to the source, and self-attention of either stack."""
