"""Search against naive search, with the model and with a step function that knows none."""

import pytest
import torch
from torch.testing import assert_close

from transformer_mt.batching import pad
from transformer_mt.config import ModelConfig
from transformer_mt.decoding import greedy
from transformer_mt.model import Transformer

V, PAD, BOS, EOS = 12, 3, 4, 5
LENGTHS = (2, 9, 5, 1, 7, 3, 12, 4)


@pytest.fixture(scope="module")
def model() -> Transformer:
    """Gives a random model whose sentences end at various lengths."""
    torch.manual_seed(7)
    layers = {"encoder_layers": 2, "decoder_layers": 2, "norm": "pre", "tie_embeddings": False}
    config = ModelConfig(d_model=16, d_ff=32, n_heads=2, **layers)
    model = Transformer(config, V, V, PAD)
    for parameter in model.parameters():
        parameter.data.mul_(2.0)
    return model.eval()


@pytest.fixture(scope="module")
def sources() -> list[list[int]]:
    """Gives sentences of different lengths."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(EOS + 1, V, (n,), generator=generator).tolist() for n in LENGTHS]


@torch.no_grad()
def naive_greedy(model: Transformer, source: list[int], max_length: int) -> list[int]:
    """Decodes one sentence from its begin mark anew for every token."""
    src, tgt = torch.tensor([source]), [BOS]
    while len(tgt) <= max_length:
        memory = model.encode(src)
        logits = model.decode(torch.tensor([tgt]), memory, model.src_mask(src))
        token = int(logits[0, -1].argmax())
        if token == EOS:
            break
        tgt.append(token)
    return tgt[1:]


@torch.no_grad()
def cached_greedy(
    model: Transformer, sources: list[list[int]], limits: list[int]
) -> list[list[int]]:
    """Decodes a padded batch as the translator does."""
    state = model.start(pad(sources, PAD), max(limits))
    return greedy(model.decode_step, state, torch.tensor(limits), BOS, EOS)


def test_greedy_equals_the_naive_loop(model, sources):
    """A cached, batched search finds what an uncached loop finds for each sentence alone."""
    limits = [20, 3, 20, 11, 20, 1, 7, 20]
    expected = [naive_greedy(model, *pair) for pair in zip(sources, limits, strict=True)]
    lengths = [len(hypothesis) for hypothesis in expected]
    assert any(0 < n < limit for n, limit in zip(lengths, limits, strict=True)), "none ends"
    assert any(n == limit for n, limit in zip(lengths, limits, strict=True)), "none is cut"
    assert len(set(lengths)) > 3
    assert cached_greedy(model, sources, limits) == expected


@torch.no_grad()
def test_search_score_equals_teacher_forced_score(model, sources):
    """Log-probabilities gathered while searching sum to those decode gives the hypothesis."""
    for source in sources:
        picked: list[float] = []

        def step(ids, state, picked=picked):
            logits = model.decode_step(ids, state)
            picked.append(float(logits.log_softmax(-1).max()))
            return logits

        src = torch.tensor([source])
        [hypothesis] = greedy(step, model.start(src, 15), torch.tensor([15]), BOS, EOS)
        targets = torch.tensor([*hypothesis, EOS][: len(picked)])
        logits = model(src, torch.tensor([[BOS, *hypothesis][: len(picked)]]))
        forced = logits[0].log_softmax(-1).gather(1, targets[:, None]).sum()
        assert_close(torch.tensor(sum(picked)), forced, rtol=0, atol=1e-4)


class Script:
    """A step function and its state: each row says its own tokens, then junk for ever."""

    def __init__(self, texts: list[list[int]]) -> None:
        self.texts, self.heard = [list(text) for text in texts], []
        self.position = 0

    def select(self, rows: torch.Tensor) -> None:
        self.texts = [self.texts[row] for row in rows.tolist()]

    def step(self, ids: torch.Tensor, state: "Script") -> torch.Tensor:
        assert state is self and len(ids) == len(self.texts)
        self.heard.append(ids.tolist())
        said = [text[self.position] for text in self.texts]
        self.position += 1
        return torch.nn.functional.one_hot(torch.tensor(said), V).float()


def play(texts: list[list[int]], limits: list[int]) -> tuple[list[list[int]], list[list[int]]]:
    """Decodes a script; gives the hypotheses and the ids each step was called with."""
    script = Script(texts)
    return greedy(script.step, script, torch.tensor(limits), BOS, EOS), script.heard


def test_ended_rows_leave_and_disturb_no_other():
    """A row that ends is never stepped again; every step hears the last tokens of the others."""
    texts = [[7, EOS, 9, 9], [EOS, 9, 9, 9], [6, 8, 7, EOS], [8, 8, EOS, 9]]
    hypotheses, heard = play(texts, [10, 10, 10, 10])
    assert hypotheses == [[7], [], [6, 8, 7], [8, 8]]
    assert heard == [[BOS] * 4, [7, 6, 8], [8, 8], [7]]


def test_each_row_has_its_own_limit():
    """A row gives at most its own number of tokens and may end exactly there; then it leaves."""
    texts = [[7, 7, 7], [6, 6, 6], [8, 8, EOS], [9, 9, 9]]
    hypotheses, heard = play(texts, [2, 1, 3, 3])
    assert hypotheses == [[7, 7], [6], [8, 8], [9, 9, 9]]
    assert [len(ids) for ids in heard] == [4, 3, 2]
