"""torch.compile of the model in training."""

from collections.abc import Callable

import torch
from torch import Tensor

from transformer_mt.errors import CompileError
from transformer_mt.model.transformer import Transformer


def compile_hidden(
    model: Transformer, max_length: int, backend: str | Callable[..., object] = "inductor"
) -> Callable[[Tensor, Tensor], Tensor]:
    """Compiles `model.decoder_output` to a few graphs that serve batches of all shapes.

    Args:
        model: The model, whose parameters are shared.
        max_length: Tokens of the longest source or target, including those in validation.
        backend: Backend of `torch.compile`.
    """
    model.reserve(max_length)  # a table of positions that grows would need a new graph
    return torch.compile(model.decoder_output, dynamic=True, backend=backend)


def to_compile_error(error: Exception) -> CompileError:
    """Converts an error of torch.compile to one that says what to do."""
    reason, *_ = str(error).split("\n\n")  # what follows is advice to PyTorch's authors
    return CompileError(
        f"torch.compile failed ({reason}): install a C compiler and Python's headers, or set"
        " train.compile = false"
    )
