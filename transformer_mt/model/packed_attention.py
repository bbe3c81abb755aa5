"""Attention within the sentences of a pack, for training on CUDA.

Shapes: H heads, N tokens of a pack, padding included, K head width, Q = N / `BLOCK` blocks.
"""

import torch
from torch import Tensor

from transformer_mt.text.packing import BLOCK


class PackMask:
    """Which keys the queries of a pack may attend to: those of their own sentence.

    Args:
        query_segments: Number of the sentence of each query, (N,).
        key_segments: Likewise of each key, (N,).
        key_blocks: First and last block of keys that each block of queries attends to, (Q, 2).
        causal: Whether a query sees only positions up to its own.
    """

    def __init__(
        self, query_segments: Tensor, key_segments: Tensor, key_blocks: Tensor, causal: bool
    ) -> None:
        # Importing it takes seconds, and only training on CUDA needs it.
        from torch.nn.attention.flex_attention import BlockMask

        def may_attend(_: Tensor, __: Tensor, query: Tensor, key: Tensor) -> Tensor:
            is_same = query_segments[query] == key_segments[key]
            return is_same & (query >= key) if causal else is_same

        n_blocks = len(key_segments) // BLOCK
        first, last = key_blocks.unbind(1)  # (Q,) each
        # Of each row of indices only the first `last - first + 1` count.
        columns = torch.arange(n_blocks, device=first.device, dtype=torch.int32)
        indices = (first[:, None] + columns) % n_blocks  # (Q, blocks of keys)
        self._block_mask = BlockMask.from_kv_blocks(
            (last - first + 1)[None, None],
            indices[None, None].contiguous(),
            BLOCK_SIZE=BLOCK,
            mask_mod=may_attend,
            seq_lengths=(len(query_segments), len(key_segments)),
        )

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attends from queries, (1, H, N, K), to keys and values; gives (1, H, N, K).

        This is for torch.compile, which makes one kernel of it.
        """
        from torch.nn.attention.flex_attention import flex_attention

        return flex_attention(q, k, v, block_mask=self._block_mask)
