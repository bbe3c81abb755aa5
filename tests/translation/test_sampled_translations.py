"""Sampling: what is drawn, what it depends on, and what is refused."""

import pytest
import torch
from conftest import copy_lines

from transformer_mt import load
from transformer_mt.errors import ConfigError
from transformer_mt.text.vocabulary import PAD_ID
from transformer_mt.translation.options import Sampling, SearchOptions
from transformer_mt.translation.runtime import Source, length_penalty
from transformer_mt.translation.search import Sampler

LINES = [*copy_lines(14, 5), "", "ab cd"]
LINES += ["ab cd", " ".join([*LINES[:4], "xyz."] * 2)]  # a repeated one, and one of equal parts


def draw(logits: torch.Tensor, count: int, position: int = 1, **options) -> torch.Tensor:
    """Draws a token for each of the lines 1 to `count`."""
    sources = [Source((), line=line) for line in range(1, count + 1)]
    sampler = Sampler(sources, Sampling(**options), torch.device("cpu"))
    return sampler.choose(logits.expand(count, -1), torch.arange(count), position)


@pytest.mark.parametrize(
    ("temperature", "top_k"), [(1.0, None), (0.5, None), (2.0, 3), (1.0, 1), (1.0, 99)]
)
def test_tokens_are_drawn_by_their_probabilities(temperature, top_k):
    """Those of the softmax of the logits by the temperature, the `top_k` highest alone."""
    logits = torch.tensor([0.3, -4.0, 1.2, 0.9, -torch.inf, -1.0, 1.0, 0.0])
    kept = logits >= logits.sort(descending=True).values[min(top_k or 8, 8) - 1]
    expected = (logits / temperature).masked_fill(~kept, -torch.inf).softmax(0)
    drawn = draw(logits, 20_000, temperature=temperature, top_k=top_k)
    shares = drawn.bincount(minlength=8) / len(drawn)
    assert torch.all(shares[expected == 0] == 0)
    assert torch.allclose(shares, expected, atol=0.016)


def test_draws_are_independent_and_nearly_equal_logits_give_the_same():
    """By line, position and seed, the same in every version; rows and rounding do not matter."""
    assert draw(torch.arange(50) / 50, 8, 2, top_k=20).tolist() == [
        *(39, 37, 40, 40, 31, 43, 41, 36)
    ]
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
    small, large = (
        model.translator(SearchOptions(sampling=sampling, batch_tokens=n)) for n in (40, 4096)
    )
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


def test_mistakes_from_python(untrained_run, exported_run):
    """An exported model is named."""
    with pytest.raises(ConfigError, match="top-k 0: choose 1 or more"):
        load(untrained_run).sample(["a"], top_k=0)
    with pytest.raises(ConfigError, match="seed -1: choose 0 to 4294967295"):
        load(untrained_run).sample(["a"], seed=-1)
    message = "exported: .* only its best translations and scores; .* made from, step-00000001$"
    with pytest.raises(ConfigError, match=message):
        load(exported_run).sample(["a"])
