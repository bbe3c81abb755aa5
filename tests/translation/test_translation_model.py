"""Models and ensembles that translate: batches, threads, precisions, checkpoints of processes."""

from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from conftest import copy_lines, refuses, tiny_config
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_mt.checkpoints.run_directory import find_checkpoint
from transformer_mt.errors import CheckpointError, DeviceError
from transformer_mt.model.ensemble import Ensemble
from transformer_mt.system.device import supports
from transformer_mt.text.batching import encode_pairs
from transformer_mt.text.splitting import SourceStatistics
from transformer_mt.text.vocabulary import BOS_ID
from transformer_mt.training.run import train
from transformer_mt.translation import translation_model
from transformer_mt.translation.options import DEFAULT_SEARCH, LoadOptions, SearchOptions
from transformer_mt.translation.pytorch_runtime import PyTorchRuntime, log_probabilities
from transformer_mt.translation.translation_model import build_translation_model, find_models
from transformer_mt.translation.translator import Translator

LINES = ["", *copy_lines(14, 9), " ", "a", *copy_lines(8, 10)]


@pytest.fixture(scope="module")
def other_run(copy_run, tmp_path_factory) -> Path:
    """Gives a run of another size with the same vocabulary."""
    run_dir, checkpoint = tmp_path_factory.mktemp("other") / "run", find_checkpoint(copy_run)
    values = {"data__max_length": 20, "model__d_model": 32, "train__max_steps": 0}
    values["vocab__path"] = str(checkpoint.path / "vocab.model")
    train(tiny_config(Path(checkpoint.config.data.path), **values), run_dir)
    return run_dir


def load(*paths: Path, search: SearchOptions = DEFAULT_SEARCH, **options) -> Translator:
    """Loads a translator; options are those of loading."""
    model = build_translation_model(find_models(paths), LoadOptions(**options))
    return model.translator(search)


@pytest.mark.parametrize("beam_size", [1, 4])
def test_batches_and_threads_change_nothing(copy_run, beam_size):
    """The same text and scores however many lines are decoded together, and batches at once."""
    torch.set_num_threads(1)
    search = SearchOptions(beam_size, with_scores=True, n_best=beam_size)
    expected = load(copy_run, search=search).n_best(LINES)
    for threads, batch_tokens in ((1, 100_000), (3, 40), (3, 1)):
        torch.set_num_threads(threads)
        search = replace(search, batch_tokens=batch_tokens)
        actual = load(copy_run, search=search).n_best(LINES)
        for expected_line, line in zip(expected, actual, strict=True):
            assert [t.text for t in expected_line] == [t.text for t in line]
            scores = [t.score for t in line]
            assert [t.score for t in expected_line] == pytest.approx(scores, abs=1e-4)


def test_too_little_memory_for_a_batch(copy_run, monkeypatch, caplog):
    """It is halved, down to single lines. Sabotage: let the error out, or lose a half."""
    translator = load(copy_run)
    expected, real, sizes = translator.n_best(LINES), PyTorchRuntime._search, list[int]()

    def search(runtime, options, sources, *rest):
        sizes.append(len(sources))
        if len(sources) > 2:
            raise MemoryError
        return real(runtime, options, sources, *rest)

    monkeypatch.setattr(PyTorchRuntime, "_search", search)
    assert translator.n_best(LINES) == expected and max(sizes) > 2
    assert sum("decoded in halves" in text for text in caplog.messages) == 1
    monkeypatch.setattr(PyTorchRuntime, "_search", Mock(side_effect=MemoryError))
    refuses(MemoryError, "", translator.n_best, LINES)


@torch.no_grad()
def test_an_ensemble_is_the_mean_probability(copy_run, other_run):
    """Of models of different sizes, position by position, rows selected between."""
    models = [find_checkpoint(path).build_model() for path in (copy_run, other_run)]
    ensemble = Ensemble(models).eval()
    src = torch.randint(4, models[0].output_weight.size(0), (3, 6))
    states = [model.begin_decoding(src, 4) for model in models]
    state = ensemble.begin_decoding(src, 4)
    members = list(zip(models, states, strict=True))
    for ids in ([BOS_ID] * 3, [9, 7, 8], [5, 6]):
        if len(ids) == 2:
            for each in (*states, state):
                each.select(torch.tensor([2, 0]), torch.tensor([2, 0]))
        last = torch.tensor(ids)
        shares = [model.next_logits(last, own).softmax(-1) for model, own in members]
        torch.testing.assert_close(ensemble.next_logits(last, state).exp(), sum(shares) / 2)


@torch.no_grad()
def test_an_ensemble_scores_by_the_mean_probability(copy_run, other_run):
    """Of each token, not of the whole."""
    checkpoints = find_models([copy_run, other_run])
    models = [checkpoint.build_model() for checkpoint in checkpoints]
    pairs = encode_pairs(["ab c"], ["ab d"], checkpoints[0].vocab)
    batch = pairs.batch(np.array([0]))
    shares = [model(batch.src, batch.tgt_in).softmax(-1) for model in models]
    tokens = (sum(shares) / 2).gather(-1, batch.tgt_out[..., None]).log()
    assert log_probabilities(Ensemble(models), pairs) == pytest.approx([float(tokens.sum())])


def test_an_ensemble_splits_lines_as_its_most_limited_member_needs(copy_run, other_run):
    """Which has the lower limit, has seen single sentences, or else the shortest lines."""
    assert load(copy_run, other_run).splitter.max_length == 20
    checkpoint, members = find_checkpoint(copy_run), []
    for percentile, several in ((20, 0.5), (10, 0.5), (24, 0.0)):
        sources = SourceStatistics(24, percentile, several)
        members.append(replace(checkpoint, state=replace(checkpoint.state, sources=sources)))
    assert translation_model.models_splitter(members[:2], LoadOptions()).usual_length == 10
    assert translation_model.models_splitter(members, LoadOptions()).splits_every_sentence


def test_an_ensemble_of_two_vocabularies_is_refused(copy_run, untrained_run):
    message = r"untrained.*its vocabulary, or data.normalize, differs from that of .*copy"
    refuses(CheckpointError, message, load, copy_run, untrained_run)


def test_precisions(copy_run):
    """The weights are rounded; what a device lacks is refused."""
    translator = load(copy_run, device="cpu")
    sizes = translator.batch_tokens, translator.first_chunk_lines, translator.chunk_lines
    assert sizes == (4096, 128, 4096)  # a change would make stopped translations start over
    expected = translator.translate(LINES)
    if supports("bf16", torch.device("cpu")):
        rounded = load(copy_run, precision="bf16")
        assert sum(map(str.__eq__, expected, rounded.translate(LINES))) > 0.8 * len(LINES)
        assert rounded.runtime.precision == "bf16"
    message = "precision fp16: this cpu does not support it"
    refuses(DeviceError, message, load, copy_run, precision="fp16", device="cpu")


@torch.no_grad()
def test_scores_of_bf16_are_normalised_in_float32(copy_run):
    checkpoint = find_checkpoint(copy_run)
    model = checkpoint.build_model().bfloat16()
    pairs = encode_pairs(["abc de"], ["fgh ij"], checkpoint.vocab)
    batch = pairs.batch(np.array([0]))
    logits = model(batch.src, batch.tgt_in).float()
    expected = logits.log_softmax(-1).gather(2, batch.tgt_out[:, :, None]).sum()
    assert log_probabilities(model, pairs) == pytest.approx([float(expected)], abs=1e-3)


@pytest.fixture(scope="module")
def translator(copy_run) -> Translator:
    return load(copy_run)


@settings(max_examples=25)
@given(st.lists(st.text(st.characters(exclude_characters="\n"), max_size=12), max_size=6))
def test_any_lines(translator, lines):
    r"""As many come out; those without a piece are empty, none holds a line break or a tab."""
    translations = translator.translate(lines)
    assert len(translations) == len(lines)
    for line, text in zip(lines, translations, strict=True):
        assert not set("\n\r\t") & set(text)
        assert line.split() or not text


def test_fp32_is_fp32_whatever_the_default_is(copy_run):
    """Sabotage: leave the type of weights or positions to PyTorch's default."""
    model = find_checkpoint(copy_run).build_model()
    torch.set_default_dtype(torch.bfloat16)
    try:
        other = find_checkpoint(copy_run).build_model()
    finally:
        torch.set_default_dtype(torch.float32)
    ids = torch.arange(4, 40)[None]
    assert torch.equal(model(ids, ids), other(ids, ids))
