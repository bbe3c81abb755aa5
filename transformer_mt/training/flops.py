"""Floating-point operations: how many training needs, and how many per second the device can do."""

import time

import torch

from transformer_mt.config.keys import ModelConfig
from transformer_mt.model.kernels import linear
from transformer_mt.system.device import DTYPES
from transformer_mt.system.processes import ALONE, Processes

_SIZES = {"cpu": 1024, "cuda": 8192}
"""Rows and columns of a matrix product that is large enough to run at full speed."""
_REPEATS = 5
FLOPS_PER_WEIGHT = 6
"""A multiplication and an addition per token, once forward and twice backward."""


def flops_per_token(config: ModelConfig, tgt_size: int) -> tuple[int, int]:
    """Counts the floating-point operations that training needs per real token.

    These are the multiplications and additions of all linear layers. The products inside attention
    are left out (at sentence lengths they are a few percent), and so is padding.

    Args:
        config: Sizes of the model.
        tgt_size: Target vocabulary, V.

    Returns:
        Operations per source token and per target token.
    """
    projection = config.d_model**2  # multiplications per token, as in all terms below
    feed_forward = 2 * config.d_model * config.d_ff
    output = tgt_size * config.d_model
    per_src_token = config.encoder_layers * (4 * projection + feed_forward)
    # Cross-attention is a part of the decoder, but projects keys and values of source positions.
    per_src_token += config.decoder_layers * 2 * projection
    per_tgt_token = config.decoder_layers * (6 * projection + feed_forward) + output
    return FLOPS_PER_WEIGHT * per_src_token, FLOPS_PER_WEIGHT * per_tgt_token


def measure_peak_flops(device: torch.device, precision: str, processes: Processes = ALONE) -> float:
    """Measures the floating-point operations per second of a large matrix product.

    Takes the best of a few repeats, in each of the processes, and their sum. On CUDA call it within
    `compute_settings`; a CPU uses the threads of this process.
    """
    size, synchronize = _SIZES[device.type], torch.get_device_module(device).synchronize
    # Random, because a GPU clocks higher on equal numbers.
    factor = torch.rand(size, size, device=device).to(DTYPES[precision])
    seconds = []
    for _ in range(_REPEATS):
        synchronize()
        began = time.perf_counter()
        linear(factor, factor)
        synchronize()
        seconds.append(time.perf_counter() - began)
    return sum(processes.gather(2.0 * size**3 / min(seconds)))
