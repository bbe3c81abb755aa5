"""Multi-head self-attention and cross-attention, for whole sequences and position by position.

Shapes: B batch, S source length, T target length, D model width, H heads, K = D / H head width,
R rows (hypotheses) of incremental decoding. Masks are bool and True means "may attend".

Reference: Vaswani et al. 2017, Attention Is All You Need, sections 3.2.2 and 3.2.3.
"""

from torch import Tensor, nn

from transformer_mt.config.keys import ModelConfig
from transformer_mt.model.attention import attention_weights
from transformer_mt.model.cpu_kernels import Linear, attention
from transformer_mt.model.decoder_cache import LayerCache


def split_heads(x: Tensor, n_heads: int) -> Tensor:
    """Splits the width into heads, (B, T, D) to (B, H, T, K)."""
    heads: Tensor = x.unflatten(-1, (n_heads, -1)).transpose(1, 2)  # type: ignore[no-untyped-call]
    return heads


def join_heads(heads: Tensor) -> Tensor:
    """Concatenates the heads, (B, H, T, K) to (B, T, D)."""
    return heads.transpose(1, 2).flatten(2)


class SelfAttention(nn.Module):
    """Multi-head attention of a sequence to itself (section 3.2.2)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.n_heads, self.dropout = config.n_heads, config.attention_dropout
        # One weight for queries, keys and values: one product is faster than three.
        self.qkv = Linear(config.d_model, 3 * config.d_model, config.attention_bias)
        self.out = Linear(config.d_model, config.d_model, config.attention_bias)

    def forward(self, x: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
        """Attends within x, (B, T, D) to (B, T, D)."""
        q, k, v = self._project(x)
        dropout = self.dropout if self.training else 0.0
        heads = attention(q, k, v, mask, causal, dropout)  # (B, H, T, K)
        output: Tensor = self.out(join_heads(heads))  # (B, T, D)
        return output

    def weights(self, x: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
        """Computes the attention weights of `forward`, (B, H, T, T), before dropout."""
        q, k, _ = self._project(x)
        return attention_weights(q, k, mask, causal)

    def decode_position(self, x: Tensor, cache: LayerCache, position: int) -> Tensor:
        """Attends from one position to itself and all before it, and adds it to the cache.

        Args:
            x: Vectors of the position, (R, 1, D).
            cache: Holds the previous positions.
            position: Index of the position.

        Returns:
            Output at the position, (R, 1, D).
        """
        q, k, v = self.qkv(x).chunk(3, dim=-1)  # (R, 1, D) each
        cache.self_keys.append(k[:, 0], position)
        cache.self_values.append(v[:, 0], position)
        keys = cache.self_keys.heads(position + 1, self.n_heads)
        values = cache.self_values.heads(position + 1, self.n_heads)
        heads = attention(split_heads(q, self.n_heads), keys, values, None, False, 0.0)
        output: Tensor = self.out(join_heads(heads))  # (R, 1, D)
        return output

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Projects x to queries, keys and values, (B, T, D) to three (B, H, T, K)."""
        q, k, v = split_heads(self.qkv(x), 3 * self.n_heads).chunk(3, dim=1)
        return q, k, v


class CrossAttention(nn.Module):
    """Multi-head attention of the target to the encoder's output (section 3.2.3)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.n_heads, self.dropout = config.n_heads, config.attention_dropout
        self.q = Linear(config.d_model, config.d_model, config.attention_bias)
        self.kv = Linear(config.d_model, 2 * config.d_model, config.attention_bias)
        self.out = Linear(config.d_model, config.d_model, config.attention_bias)

    def project_memory(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Projects the encoder's output to keys and values, (B, S, D) to two (B, H, S, K)."""
        k, v = split_heads(self.kv(memory), 2 * self.n_heads).chunk(2, dim=1)
        return k, v

    def forward(self, x: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """Attends to projected memory.

        Args:
            x: Target vectors, (B, T, D).
            keys: From `project_memory`, (B, H, S, K).
            values: From `project_memory`, (B, H, S, K).
            mask: Source positions that are not padding, (B, 1, 1, S).

        Returns:
            Output, (B, T, D).
        """
        dropout = self.dropout if self.training else 0.0
        q = split_heads(self.q(x), self.n_heads)  # (B, H, T, K)
        heads = attention(q, keys, values, mask, False, dropout)  # (B, H, T, K)
        output: Tensor = self.out(join_heads(heads))  # (B, T, D)
        return output

    def weights(self, x: Tensor, keys: Tensor, mask: Tensor) -> Tensor:
        """Computes the attention weights of `forward`, (B, H, T, S), before dropout."""
        return attention_weights(split_heads(self.q(x), self.n_heads), keys, mask, False)

    def decode_position(self, x: Tensor, cache: LayerCache, mask: Tensor) -> Tensor:
        """Attends from one position of R rows, (R, 1, D), to the B sources they belong to.

        Rows of one source are adjacent, so they are computed as its queries and share its keys.
        """
        queries = x.view(len(cache.memory_keys), -1, x.size(-1))  # (B, R / B, D)
        output: Tensor = self(queries, cache.memory_keys, cache.memory_values, mask)
        return output.view_as(x)  # (R, 1, D)
