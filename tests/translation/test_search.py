"""Search against naive search, with a model and with scripted logits; what is drawn at random."""

import pytest
import torch
from conftest import copy_lines
from torch.nn.utils.rnn import pad_sequence
from torch.testing import assert_close

from transformer_mt import load
from transformer_mt.config.keys import ModelConfig
from transformer_mt.model.transformer import Transformer
from transformer_mt.text.vocabulary import PAD_ID
from transformer_mt.translation import search as decoding
from transformer_mt.translation.options import Sampling, SearchOptions
from transformer_mt.translation.runtime import Source, length_penalty
from transformer_mt.translation.search import Sampler, beam_search, greedy

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
MANY, KEPT = [[EOS, 9], [7, EOS, 9, 9], *[[8, 8, 8, EOS]] * 18], [[], [7], *[[8, 8, 8]] * 18]


@pytest.mark.parametrize(
    ("multiple", "texts", "limits", "found", "calls"),
    [
        (1, ENDING, [10] * 4, [[7], [], [6, 8, 7], [8, 8]], [[BOS] * 4, [7, 6, 8], [8, 8], [7]]),
        (2, ENDING, [10] * 4, [[7], [], [6, 8, 7], [8, 8]], [4, 4, 2, 2]),
        (1, LIMITED, [2, 1, 3, 3], [[7, 7], [6], [8, 8], [9, 9, 9]], [4, 3, 2]),
        # Rows are removed once nine tenths of them are enough, not before.
        (1, MANY, [10] * 20, KEPT, [20, 20, 18, 18]),
    ],
)
def test_ended_rows_leave_and_disturb_no_other(monkeypatch, multiple, texts, limits, found, calls):
    """A row gives at most its own number of tokens and may end exactly there; then it leaves."""
    monkeypatch.setattr(decoding, "ROW_MULTIPLE", multiple)
    script = Script(texts)
    assert greedy(script.next_logits, script, torch.tensor(limits), BOS, EOS) == found
    assert calls in (script.calls, [len(ids) for ids in script.calls])


def test_continuations_of_probability_zero_are_told_apart():
    """A beam holds them where the ids that are left out leave too few others."""

    def next_logits(ids: torch.Tensor, state: Script) -> torch.Tensor:
        logits = torch.full((len(ids), V), -torch.inf)
        return logits.index_fill(1, torch.tensor([7, EOS]), 0.0)

    [found] = beam_search(next_logits, Script([[]]), torch.tensor([1]), BOS, EOS, 3, 0.6)
    assert len({tuple(hypothesis.ids) for hypothesis in found}) == 3


@torch.no_grad()
def naive_beam(model, source, limit, beam_size, alpha) -> list[tuple[list[int], float]]:
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


LINES = [*copy_lines(14, 5), "", "ab cd"]
LINES += ["ab cd", " ".join([*LINES[:4], "xyz."] * 2)]  # a repeated one, and one of equal parts


def draw(logits: torch.Tensor, count: int, position: int = 1, **options) -> torch.Tensor:
    """Draws a token for each of the lines 1 to `count`."""
    sources = [Source((), line=line) for line in range(1, count + 1)]
    sampler = Sampler(sources, Sampling(**options), torch.device("cpu"))
    return sampler.choose(logits.expand(count, -1), torch.arange(count), position)


@pytest.mark.parametrize("options", [(1, None), (0.5, None), (2, 3), (1, 1), (1, 99)])
def test_tokens_are_drawn_by_their_probabilities(options):
    """Those of the softmax of the logits by the temperature, the `top_k` highest alone."""
    temperature, top_k = options
    logits = torch.tensor([0.3, -4.0, 1.2, 0.9, -torch.inf, -1.0, 1.0, 0.0])
    kept = logits >= logits.sort(descending=True).values[min(top_k or 8, 8) - 1]
    expected = (logits / temperature).masked_fill(~kept, -torch.inf).softmax(0)
    drawn = draw(logits, 20_000, temperature=temperature, top_k=top_k)
    shares = drawn.bincount(minlength=8) / len(drawn)
    assert torch.all(shares[expected == 0] == 0)
    assert torch.allclose(shares, expected, atol=0.016)


def test_draws_are_independent_and_nearly_equal_logits_give_the_same():
    """By line, position and seed, the same in every version; rows and rounding do not matter."""
    drawn = draw(torch.arange(50) / 50, 8, 2, top_k=20)
    assert drawn.tolist() == [39, 37, 40, 40, 31, 43, 41, 36]
    logits, count = torch.zeros(50), 5_000
    first = draw(logits, count)
    others = [draw(logits, count, 2), draw(logits, count, seed=2), first.roll(1)]
    sources = [Source((), line=line, part=1) for line in range(1, count + 1)]
    sampler = Sampler(sources, Sampling(), torch.device("cpu"))
    others.append(sampler.choose(logits.expand(count, -1), torch.arange(count), 1))
    for other in others:
        assert (first == other).float().mean() == pytest.approx(0.02, abs=0.008)
    rows = torch.arange(count).flip(0)[:100]
    assert torch.equal(sampler.choose(logits.expand(100, -1), rows, 1), others[-1][rows])
    rounded = draw(logits + 1e-6 * torch.rand(50), count)
    assert (first != rounded).sum() <= 2


def test_a_line_s_draw_depends_on_its_number_alone(untrained_run):
    """Not on batches, chunks or the lines around it; equal lines differ."""
    model, sampling = load(untrained_run), Sampling(temperature=0.7)
    options = (SearchOptions(sampling=sampling, batch_tokens=n) for n in (40, 4096))
    small, large = map(model.translator, options)
    expected = small.n_best(LINES)
    assert [t.text for [t] in large.n_best(LINES)] == [t.text for [t] in expected]
    rest = large.n_best(LINES[10:], first_line=11)
    assert [t.text for [t] in rest] == [t.text for [t] in expected[10:]]
    large.first_chunk_lines, large.chunk_lines = 3, 5
    assert large.translate(LINES) == [t.text for [t] in expected]
    assert model.sample(LINES, temperature=0.7) == [t.text for [t] in expected]
    assert model.sample(LINES, seed=2) != model.sample(LINES)
    assert model.sample(LINES, top_k=1) == model.translate(LINES)
    equal_lines, [halves] = [text for [(text, *_)] in expected[15:17]], expected[17]
    assert equal_lines[0] != equal_lines[1] and halves.parts == 2
    middle = len(halves.text) // 2
    assert halves.text[:middle] != halves.text[middle + 1 :]


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_scores_are_those_of_the_model(untrained_run, alpha):
    """Of hypotheses that end, and of those cut at the limit, which have no end."""
    model = load(untrained_run)
    rows = [tuple(ids) for ids in model.vocab.src.encode(copy_lines(60, 5))]
    sources = [Source(ids, line=line) for line, ids in enumerate(rows)]
    options = SearchOptions(length_penalty=alpha, sampling=Sampling(temperature=0.7))
    [drawn] = model.runtime.decode([sources], options)
    given = model.runtime.score(rows, [each.ids for [each] in drawn])
    ended = [len(each.ids) < len(ids) + 50 for [each], ids in zip(drawn, rows, strict=True)]
    assert 0 < sum(ended) < 60
    for [each], score, has_end in zip(drawn, given, ended, strict=True):
        if PAD_ID not in each.ids:  # which has no score as a given translation
            total = each.score * length_penalty(len(each.ids) + has_end, alpha)
            assert (total == pytest.approx(score, abs=1e-3)) == has_end
            assert has_end or total > score + 1
