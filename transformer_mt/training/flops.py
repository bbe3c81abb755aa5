"""How much arithmetic training needs, and how much of it the device could do."""

import time

import torch

from transformer_mt.config import ModelConfig
from transformer_mt.model.cpu_kernels import product
from transformer_mt.system.device import DTYPES, tensor_cores

_SIZES = {"cpu": 1024, "cuda": 8192}
"""Rows and columns of a product that is large enough to run at full speed."""
_TRIES = 5


def training_flops(config: ModelConfig, tgt_size: int, src_tokens: int, tgt_tokens: int) -> float:
    """Counts the floating-point operations that training on some real tokens needs.

    These are the multiplications and additions by the model's matrices, forward and twice as many
    backward. Attention's products of queries, keys and values are left out (at the length of
    sentences they are hundredths), and so is what is spent on padding.

    Args:
        config: The model's sizes.
        tgt_size: Target vocabulary, V.
        src_tokens: Source tokens, end marks included.
        tgt_tokens: Target tokens, end marks included.
    """
    square, feed_forward = config.d_model**2, 2 * config.d_model * config.d_ff
    # Keys and values of cross-attention belong to the decoder, but are made of source positions.
    a_source = config.encoder_layers * (4 * square + feed_forward)
    a_source += config.decoder_layers * 2 * square
    a_target = config.decoder_layers * (6 * square + feed_forward) + tgt_size * config.d_model
    return 6.0 * (src_tokens * a_source + tgt_tokens * a_target)


def measure_peak_flops(device: torch.device, precision: str) -> float:
    """Measures a large matrix product, in operations a second: the best of some tries.

    Args:
        device: Where to compute, with as many threads as this process has.
        precision: `fp32`, `bf16` or `fp16`.
    """
    size = _SIZES[device.type]
    # Not all alike: a GPU clocks higher on equal numbers.
    matrix = torch.rand(size, size, device=device).to(DTYPES[precision])
    seconds = []
    for _ in range(_TRIES):
        _wait(device)
        began = time.perf_counter()
        with tensor_cores(device):  # as training does
            product(matrix, matrix)
        _wait(device)
        seconds.append(time.perf_counter() - began)
    return 2.0 * size**3 / min(seconds)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
