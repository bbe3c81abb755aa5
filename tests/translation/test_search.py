"""Search against naive search, with a model and with scripted logits."""

import pytest
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.testing import assert_close

from transformer_mt.config.keys import ModelConfig
from transformer_mt.model.transformer import Transformer
from transformer_mt.translation import search as decoding
from transformer_mt.translation.search import beam_search, greedy

V, PAD, BOS, EOS = 12, 3, 4, 5
LENGTHS = (2, 9, 5, 1, 7, 3, 12, 4)
LIMITS = [20, 3, 20, 11, 20, 1, 7, 20]


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


def pad(sources: list[list[int]]) -> torch.Tensor:
    return pad_sequence([torch.tensor(ids) for ids in sources], True, PAD)


class Script:
    """Scripted logits and their state: each row gives its own tokens, then anything."""

    def __init__(self, texts: list[list[int]]) -> None:
        self.texts, self.calls = [list(text) for text in texts], []
        self.position = 0

    def select(self, rows: torch.Tensor, sources: torch.Tensor | None = None) -> None:
        self.texts = [self.texts[row] for row in rows.tolist()]

    def next_logits(self, ids: torch.Tensor, state: "Script") -> torch.Tensor:
        assert state is self and len(ids) == len(self.texts)
        self.calls.append(ids.tolist())
        tokens = [text[self.position] for text in self.texts]
        self.position += 1
        return torch.nn.functional.one_hot(torch.tensor(tokens), V).float()


ENDING = [[7, EOS, 9, 9], [EOS, 9, 9, 9], [6, 8, 7, EOS], [8, 8, EOS, 9]]
LIMITED = [[7, 7, 7], [6, 6, 6], [8, 8, EOS], [9, 9, 9]]
MANY, KEPT = [[8, 8, 8, EOS]] * 18, [[8, 8, 8]] * 18


@pytest.mark.parametrize(
    ("multiple", "texts", "limits", "hypotheses", "calls"),
    [
        (1, ENDING, [10] * 4, [[7], [], [6, 8, 7], [8, 8]], [[BOS] * 4, [7, 6, 8], [8, 8], [7]]),
        (2, ENDING, [10] * 4, [[7], [], [6, 8, 7], [8, 8]], [4, 4, 2, 2]),
        (1, LIMITED, [2, 1, 3, 3], [[7, 7], [6], [8, 8], [9, 9, 9]], [4, 3, 2]),
        # Rows are removed once nine tenths of them are enough, not before.
        (
            1,
            [[EOS] + [9] * 3, [7, EOS, 9, 9], *MANY],
            [10] * 20,
            [[], [7], *KEPT],
            [20, 20, 18, 18],
        ),
    ],
)
def test_ended_rows_leave_and_disturb_no_other(
    monkeypatch, multiple, texts, limits, hypotheses, calls
):
    """What an ended row would go on with is in no hypothesis; row counts are multiples.

    A row gives at most its own number of tokens and may end exactly there; then it leaves.
    """
    monkeypatch.setattr(decoding, "ROW_MULTIPLE", multiple)
    script = Script(texts)
    assert greedy(script.next_logits, script, torch.tensor(limits), BOS, EOS) == hypotheses
    assert calls in (script.calls, [len(ids) for ids in script.calls])


def test_continuations_of_probability_zero_are_told_apart():
    """A beam holds them where the ids that are left out leave too few others."""

    def next_logits(ids: torch.Tensor, state: Script) -> torch.Tensor:
        logits = torch.full((len(ids), V), -torch.inf)
        return logits.index_fill(1, torch.tensor([7, EOS]), 0.0)

    [found] = beam_search(next_logits, Script([[]]), torch.tensor([1]), BOS, EOS, 3, 0.6)
    assert len({tuple(hypothesis.ids) for hypothesis in found}) == 3


@torch.no_grad()
def naive_beam(
    model: Transformer, source: list[int], limit: int, beam_size: int, alpha: float
) -> list[tuple[list[int], float]]:
    """Searches for one sentence with lists and no cache; gives ids and scores, best first."""
    src, beam, ended = torch.tensor([source]), [([BOS], 0.0)], []
    while True:
        candidates = []
        for tgt, total in beam:
            logits = model(src, torch.tensor([tgt]))[0, -1]
            for token, value in enumerate(logits.log_softmax(-1).tolist()):
                candidates.append(([*tgt, token], total + value))
        candidates = sorted(candidates, key=lambda c: -c[1])[: 2 * beam_size]
        ended += [(tgt[1:], v) for tgt, v in candidates[:beam_size] if tgt[-1] == EOS]
        beam = [c for c in candidates if c[0][-1] != EOS][:beam_size]
        if len(ended) >= beam_size:
            break
        if len(beam[0][0]) > limit:
            ended += [(tgt[1:], v) for tgt, v in beam]
            break
    scored = [(tgt, value / ((5 + len(tgt)) / 6) ** alpha) for tgt, value in ended]
    scored = sorted(scored, key=lambda s: -s[1])[:beam_size]
    return [([token for token in tgt if token != EOS], score) for tgt, score in scored]


@torch.no_grad()
def test_greedy_equals_the_naive_search(model, sources):
    """A cached, batched search finds what lists find for each sentence alone."""
    expected = [naive_beam(model, *row, 1, 0.0)[0][0] for row in zip(sources, LIMITS, strict=True)]
    lengths = [len(hypothesis) for hypothesis in expected]
    assert any(0 < n < limit for n, limit in zip(lengths, LIMITS, strict=True)), "none ends"
    assert any(n == limit for n, limit in zip(lengths, LIMITS, strict=True)), "none is cut"
    assert len(set(lengths)) > 3
    state = model.begin_decoding(pad(sources), max(LIMITS))
    assert greedy(model.next_logits, state, torch.tensor(LIMITS), BOS, EOS) == expected


@torch.no_grad()
@pytest.mark.parametrize(("beam_size", "alpha"), [(1, 0.6), (2, 0.0), (4, 1.0)])
def test_beam_equals_the_naive_search(model, sources, beam_size, alpha):
    """Also as it shrinks. A beam of one is greedy search."""
    sources, limits = sources[:5], torch.tensor(LIMITS[:5])
    state = model.begin_decoding(pad(sources), max(LIMITS))
    searched = beam_search(model.next_logits, state, limits, BOS, EOS, beam_size, alpha)
    for source, limit, hypotheses in zip(sources, LIMITS[:5], searched, strict=True):
        expected = naive_beam(model, source, limit, beam_size, alpha)
        assert [h.ids for h in hypotheses] == [ids for ids, _ in expected]
        scores = torch.tensor([h.score for h in hypotheses])
        assert_close(scores, torch.tensor([s for _, s in expected]), rtol=0, atol=1e-4)
