"""`translate`: batches, precisions, ensembles, streams."""

import os
import select
import signal
import subprocess
from pathlib import Path

import pytest
import torch
from conftest import command, copy_lines, run_program, tiny_config
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_mt.checkpoints.run_directory import find_checkpoint
from transformer_mt.errors import CheckpointError, ConfigError, DeviceError
from transformer_mt.model.cpu_kernels import is_packed, packed_weights
from transformer_mt.model.ensemble import Ensemble
from transformer_mt.system.device import supports
from transformer_mt.text.vocabulary import BOS_ID
from transformer_mt.training.run import train
from transformer_mt.translation.options import DEFAULT_SEARCH, LoadOptions, SearchOptions
from transformer_mt.translation.translation_model import build_translation_model, find_checkpoints
from transformer_mt.translation.translator import Translator

LINES = ["", *copy_lines(40, 9), " ", "a", *copy_lines(20, 10)]


@pytest.fixture(scope="module")
def other_run(copy_run, tmp_path_factory) -> Path:
    """Gives a run of another size with the same vocabulary."""
    folder = tmp_path_factory.mktemp("other")
    config = find_checkpoint(copy_run).config
    vocab = find_checkpoint(copy_run).path / "vocab.model"
    values = {"data__max_length": 20, "model__d_model": 32, "train__max_steps": 5}
    other = tiny_config(Path(config.data.path), **values)
    other = other.model_copy(update={"vocab": other.vocab.model_copy(update={"path": str(vocab)})})
    train(other, folder / "run")
    return folder / "run"


@pytest.fixture(scope="module")
def translator(copy_run) -> Translator:
    """Gives a translator that copies."""
    return load(copy_run)


def load(*paths: Path, search: SearchOptions = DEFAULT_SEARCH, **options) -> Translator:
    """Loads a translator; options are those of loading."""
    model = build_translation_model(find_checkpoints(paths), LoadOptions(**options))
    return model.translator(search)


@pytest.mark.parametrize("batch_tokens", [1, 40, 100_000])
@pytest.mark.parametrize("beam_size", [1, 4])
@pytest.mark.parametrize("threads", [1, 3])
def test_batches_and_threads_change_nothing(copy_run, batch_tokens, beam_size, threads):
    """The same text and scores however many lines are decoded together, and batches at once."""
    search = SearchOptions(beam_size, with_scores=True)
    expected = load(copy_run, search=search).translate_chunk(LINES)
    search = SearchOptions(beam_size, with_scores=True, batch_tokens=batch_tokens)
    torch.set_num_threads(threads)
    actual = load(copy_run, search=search).translate_chunk(LINES)
    for expected_line, line in zip(expected, actual, strict=True):
        assert [t.text for t in expected_line] == [t.text for t in line]
        scores = [t.score for t in line]
        assert [t.score for t in expected_line] == pytest.approx(scores, abs=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("rows", [1, 2, 7])
def test_logits_do_not_depend_on_the_batch(copy_run, rows):
    """Within 1e-5 in fp32, packed or not."""
    model = find_checkpoint(copy_run).build_model()
    src = torch.randint(4, model.output_weight.size(0), (7, 11))
    ids = torch.full((7,), BOS_ID)
    whole = model.next_logits(ids, model.begin_decoding(src, 3))
    with packed_weights(model):
        assert is_packed(model.output_weight)
        again = [
            model.next_logits(ids[i : i + rows], model.begin_decoding(src[i : i + rows], 3))
            for i in range(0, 7, rows)
        ]
    assert not is_packed(model.output_weight)
    torch.testing.assert_close(torch.cat(again), whole, atol=1e-5, rtol=1e-5)


def test_lines_are_counted_as_they_are_done(copy_run):
    """Empty and split lines count once."""
    counts: list[int] = []
    translator = load(copy_run, search=SearchOptions(batch_tokens=60), max_length=5)
    translator.translate_chunk(LINES, counts.append)
    assert sum(counts) == len(LINES) and len(counts) > 3
    assert 0 < translator.lines_split < len(LINES)


def test_an_ensemble_of_one_or_of_the_same_is_itself(copy_run):
    """To the last letter, and the scores too."""
    alone = load(copy_run, search=SearchOptions(2)).translate_chunk(LINES)
    model = find_checkpoint(copy_run).build_model()
    vocab = find_checkpoint(copy_run).vocab
    one = Translator(Ensemble([model]).eval(), vocab, 24, SearchOptions(2)).translate_chunk(LINES)
    twice = load(copy_run, copy_run, search=SearchOptions(2)).translate_chunk(LINES)
    for single, of_one, of_two in zip(alone, one, twice, strict=True):
        assert single[0].text == of_one[0].text == of_two[0].text
        assert single[0].score == pytest.approx(of_one[0].score, abs=1e-4)
        assert single[0].score == pytest.approx(of_two[0].score, abs=1e-4)


@torch.no_grad()
def test_an_ensemble_is_the_mean_probability(copy_run, other_run):
    """Of models of different sizes, position by position, rows selected between."""
    models = [find_checkpoint(path).build_model() for path in (copy_run, other_run)]
    ensemble = Ensemble(models).eval()
    src = torch.randint(4, models[0].output_weight.size(0), (3, 6))
    ids, rows = torch.full((3,), BOS_ID), torch.tensor([2, 0])
    states = [model.begin_decoding(src, 4) for model in models]
    state = ensemble.begin_decoding(src, 4)
    members = list(zip(models, states, strict=True))
    for last_ids in (ids, torch.tensor([9, 7, 8])):
        shares = [model.next_logits(last_ids, own).softmax(-1) for model, own in members]
        actual = ensemble.next_logits(last_ids, state).exp()
        torch.testing.assert_close(actual, sum(shares) / 2)
    for each in (*states, state):
        each.select(rows, rows)
    last = torch.tensor([5, 6])
    shares = [model.next_logits(last, own).softmax(-1) for model, own in members]
    torch.testing.assert_close(ensemble.next_logits(last, state).exp(), sum(shares) / 2)


def test_an_ensemble_takes_the_shorter_limit_and_one_vocabulary(copy_run, other_run, corpus_dir):
    """Runs with other pieces are refused by name."""
    assert load(copy_run, other_run).max_length == 20
    values = {"vocab__size": 290, "train__max_steps": 1}
    train(tiny_config(corpus_dir, **values), copy_run.parent / "pieces")
    with pytest.raises(
        CheckpointError, match=r"pieces.*its vocabulary differs from that of .*copy"
    ):
        load(copy_run, copy_run.parent / "pieces")


def test_precisions(copy_run):
    """The weights are rounded; what a device lacks is refused."""
    expected = list(load(copy_run).translate(LINES))
    if supports("bf16", torch.device("cpu")):
        rounded = list(load(copy_run, precision="bf16").translate(LINES))
        assert sum(map(str.__eq__, expected, rounded)) > 0.8 * len(LINES)
        assert load(copy_run, precision="bf16").model.output_weight.dtype == torch.bfloat16
    with pytest.raises(DeviceError, match="precision fp16: this cpu does not support it"):
        load(copy_run, precision="fp16", device="cpu")
    with pytest.raises(ConfigError, match="precision int8: choose fp32, bf16, fp16"):
        load(copy_run, precision="int8")


def test_a_coprocess_gets_its_answer(copy_run):
    """A program that writes a line and waits, with the pipe still open."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command("translate", copy_run, "--quiet"), stdin=pipe, stdout=pipe
    ) as process:
        for line in (b"abc de\n", b"\n", b"x yz\n"):
            process.stdin.write(line)
            process.stdin.flush()
            assert select.select([process.stdout], [], [], 60)[0], "nothing came"
            assert (process.stdout.readline() == b"\n") == (line == b"\n")
        process.stdin.close()
        assert process.stdout.read() == b""


def test_a_reader_that_has_enough_ends_it(copy_run, tmp_path):
    """`| head` ends it as it ends other tools: by SIGPIPE, without a message."""
    (tmp_path / "in").write_text("abc de\n" * 40_000)
    arguments = command("translate", copy_run, "--quiet", "--input", tmp_path / "in")
    pipe = subprocess.PIPE
    with subprocess.Popen(arguments, stdout=pipe, stderr=pipe) as process:
        assert process.stdout.readline()
        process.stdout.close()
        assert process.wait(60) == -signal.SIGPIPE
        assert process.stderr.read() == b""


def test_messages(copy_run):
    """Split lines and invalid bytes are counted on stderr, never on stdout."""
    long = " ".join(copy_lines(10, 3)).encode()
    done = run_program("translate", copy_run, stdin=b"ab\xff\n" + long + b"\n\n")
    assert done.stdout.count(b"\n") == 3
    messages = done.stderr.decode()
    assert "1 line over the maximum length, split into parts" in messages
    assert "warning: 1 line not in UTF-8" in messages and "3 lines in " in messages
    done = run_program("translate", copy_run, "--max-length", 1000, stdin=long)
    assert "split" not in done.stderr.decode()


def test_an_interrupted_file_leaves_nothing(copy_run, tmp_path):
    """Neither half an output nor its beginning beside it; exit code 130."""
    (tmp_path / "in").write_text("".join(f"{line}\n" for line in copy_lines(60_000, 1)))
    arguments = command("translate", copy_run, "--input", "in", "--output", "out")
    with subprocess.Popen(
        arguments,
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's & ignores it
    ) as process:
        while not (tmp_path / ".out.partial").exists():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130 and b"Traceback" not in process.stderr.read()
    assert os.listdir(tmp_path) == ["in"]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.text(st.characters(exclude_characters="\n"), max_size=12), max_size=6))
def test_any_lines(translator, lines):
    r"""As many come out; those without a piece are empty, none holds a line break or a tab."""
    translations = list(translator.translate(lines))
    assert len(translations) == len(lines)
    for line, text in zip(lines, translations, strict=True):
        assert not set("\n\r\t") & set(text)
        assert line.split() or not text


def test_a_named_pipe_is_an_input(copy_run, tmp_path):
    """As `--input <(zcat in.gz)` gives one; it is read once."""
    os.mkfifo(tmp_path / "pipe")
    arguments = command("translate", copy_run, "--quiet", "--input", tmp_path / "pipe")
    with subprocess.Popen(arguments, stdout=subprocess.PIPE) as process:
        (tmp_path / "pipe").write_text("abc de\n\n")
        assert process.communicate(timeout=60)[0].count(b"\n") == 2
