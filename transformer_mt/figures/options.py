"""Choices of the plot commands. Imports nothing heavy: --help needs it."""

from typing import Literal

XAxis = Literal["step", "minutes"]
"""What the curves of a training are drawn over."""
AttentionKind = Literal["cross", "encoder", "decoder"]
"""Attention of the decoder to the source, and self-attention of either stack."""
