"""`init`: what is counted of a text, sizes chosen for it, a configuration that trains at once."""

import gzip
import lzma
import os
import re
import shlex
import tomllib
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from conftest import assert_one_error, copy_lines, pairs_of, records, tiny_config, write_pairs
from simulated_cuda import SimulatedCuda

from transformer_mt.checkpoints.run_directory import find_checkpoint
from transformer_mt.config.keys import Config, VocabConfig, flat_values
from transformer_mt.config.loading import load_config
from transformer_mt.text.vocabulary import train_vocabulary
from transformer_mt.training import new_config
from transformer_mt.training.new_config import TextStatistics, choose_keys, measure_text
from transformer_mt.training.optimizer import noam_rate
from transformer_mt.training.run import train

PAIRS = [(f"{line} ä", f"{line} b") for line in copy_lines(300, 1)]


@pytest.fixture
def work(tmp_path, monkeypatch) -> Path:
    """Gives a working directory with text.de and text.en."""
    write_pairs(tmp_path, "text", PAIRS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_splits_cover_the_text_and_do_not_overlap(work, call):
    """But for pairs with an empty side, in the order of the files; all are counted."""
    empty = [("", "x"), ("y", " \u200b"), ("", "")]
    write_pairs(work, "text", [*PAIRS[:100], *empty, *PAIRS[100:295], *empty[:2]])
    code, _, err = call("init", "new", "--src", "text.de", "--tgt", "text.en", "--quiet")
    config = load_config(Path("new.toml"))
    splits = [pairs_of(config.data, getattr(config.data, k)) for k in ("train", "valid", "test")]
    assert [len(pairs) for pairs in splits] == [267, 14, 14] and sum(splits, []) == PAIRS[:295]
    words = " ".join(Path("new.toml").read_text().replace("# ", "").split())  # in one line
    warnings = (
        "text.de: some lines may be wrong: 3 empty",
        "text.en: some lines may be wrong: 3 empty",
        "5 pairs have an empty side; skip_empty leaves them out",
        "295 pairs are too few to train a translator, unless all sentences are alike",
    )
    assert err.splitlines() == [f"warning: {warning}" for warning in warnings] and code == 0
    assert "the first 267 pairs, validation the next 14, the test the last 14." in words
    assert "Text: 300 pairs, " in words


def test_what_the_configuration_holds(work, call, monkeypatch):
    """Every key, and the commands, which alone are not wrapped."""
    monkeypatch.setattr(new_config, "this_machine", lambda: SLOW)
    write_pairs(work, "text", [("aa bb cc", "dd")] * 1_200)
    assert call("init", "new", "--src", "text.de", "--tgt", "text.en").code == 0
    values = tomllib.loads(Path("new.toml").read_text())
    files, sizes = {"src": "text.de", "tgt": "text.en"}, {"d_model": 256, "d_ff": 1024}
    layers = {"n_heads": 4, "encoder_layers": 3, "decoder_layers": 3}
    steps = {"batch_tokens": 2000, "bidirectional_epochs": 0, "join_pairs": False}
    data = {"path": ".", "src_lang": "de", "tgt_lang": "en", "max_length": 256}
    for key, part in (("train", "[:-120]"), ("valid", "[-120:-60]"), ("test", "[-60:]")):
        data[key] = {**files, "slice": part}
    assert values == {
        "data": data,
        "vocab": {"size": 261 + 4 + 4 // 2, "sampling": 0.05},
        "model": {**sizes, **layers, "dropout": 0.3, "norm": "pre"},
        "optim": {"muon": True, "warmup_steps": 500, "lr_scale": 0.7, "max_grad_norm": 1.0},
        "train": {**steps, "max_minutes": 60, "ema_decay": 0.999, "save_every": 500},
        "valid": {"every": 500, "patience": 10},
    }
    lines = Path("new.toml").read_text().splitlines()
    assert [line for line in lines if line.startswith("#  ")] == [
        "#     transformer-mt train new.toml --dry-run  # measures sizes, speed, memory and time",
        "#     transformer-mt train new.toml  # trains; the same command again resumes",
        "#     transformer-mt evaluate checkpoints/new  # translates and scores the test text",
    ]
    assert max(len(line) for line in lines if not line.startswith("#  ")) == 79


def test_the_commands_that_it_prints(tmp_path, monkeypatch, call):
    """By the commands that it prints; with spaces, umlauts and quotes in all names."""
    write_pairs(tmp_path / "mein Täxt", "ein 'wört'", PAIRS[:20])
    monkeypatch.chdir(tmp_path)
    files = [f"mein Täxt/ein 'wört'.{language}" for language in ("de", "en")]
    code, out, err = call("init", "mein Übersetzer", "--src", files[0], "--tgt", files[1])
    assert code == 0 and "wrote mein Übersetzer.toml for 20 pairs on " in err
    dry_run, train = (shlex.split(line, comments=True) for line in out.decode().splitlines())
    assert dry_run == [*train, "--dry-run"] and train[0] == "transformer-mt"
    in_file = re.search(r"transformer-mt (evaluate .*)", Path("mein Übersetzer.toml").read_text())
    assert train[1:] == ["train", "mein Übersetzer.toml"]
    evaluate = shlex.split(in_file[1], comments=True)
    assert evaluate == ["evaluate", "checkpoints/mein Übersetzer"]
    [test] = [load_config(Path(train[2])).data.test]
    assert test.src == "ein 'wört'.de"


@pytest.mark.parametrize(
    ("name", "folder", "path"),
    [("new.v2", "", "."), ("new.toml", "../data", "../data"), ("configs\udcff/new", "", "..")],
)
def test_paths_are_relative_to_the_configuration(tmp_path, monkeypatch, name, folder, path):
    """It is found from any working directory; two folders may be named, one absolutely."""
    (tmp_path / "work" / "configs\udcff").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "work")
    for place in (Path(folder), tmp_path / "b"):
        write_pairs(place, "text", PAIRS)
    new_config.write_config(Path("two"), Path(folder, "text.de"), tmp_path / "b" / "text.en")
    config = load_config(Path("two.toml"))
    assert str(tmp_path / "b") in config.data.valid.tgt
    assert pairs_of(config.data, config.data.valid) == PAIRS[-30:-15]
    new_config.write_config(Path(name), Path(folder, "text.de"), Path(folder, "text.en"))
    file = Path(name if name.endswith(".toml") else f"{name}.toml").absolute()
    assert f'\npath = "{path}"\n' in file.read_text() and 'src = "text.de"' in file.read_text()
    monkeypatch.chdir("/")
    config = load_config(file)
    assert pairs_of(config.data, config.data.test) == PAIRS[-15:]


def test_languages(work, call):
    """By the ending before that of the compression; options win, and any name will do."""
    Path("x.de.gz").write_bytes(gzip.compress(Path("text.de").read_bytes()))
    Path("x.en.xz").write_bytes(lzma.compress(Path("text.en").read_bytes()))
    new_config.write_config(Path("a"), Path("x.en.xz"), Path("x.de.gz"))
    config = load_config(Path("a.toml"))
    assert (config.data.src_lang, config.data.tgt_lang) == ("en", "de")
    assert pairs_of(config.data, config.data.test) == [pair[::-1] for pair in PAIRS[-15:]]
    Path("text.de").rename("src.txt")
    wrong = call("init", "b", "--src", "src.txt", "--tgt", "text.en", "--src-lang", "d\te")
    assert_one_error(wrong, "b.toml: data.src_lang = 'd\\te' should match pattern")
    languages = "--src-lang", "gsw", "--tgt-lang", "pt-BR"
    assert call("init", "b", "--src", "src.txt", "--tgt", "text.en", *languages).code == 0
    config = load_config(Path("b.toml")).data
    assert (config.src_lang, config.tgt_lang) == ("gsw", "pt-BR")


def test_fine_tuning_a_run(work, corpus_dir, untrained_run, call, monkeypatch):
    """Both texts are validated. Sabotage: take sizes that suit the text, or random weights."""
    run = os.path.relpath(untrained_run)
    done = call("init", "new", "--src", "text.de", "--tgt", "text.en", "--from", run)
    assert not re.search("too few|empty|translates", done.err)
    assert done.code == 0 and done.out.splitlines()[1].startswith(b"transformer-mt train new.toml ")
    config, old = load_config(Path("new.toml")), find_checkpoint(untrained_run).config
    assert config.model == old.model.model_copy(update={"dropout": 0.3})
    assert (config.vocab, config.optim.muon) == (old.vocab, old.optim.muon)
    assert config.train.init_from == str(untrained_run) and config.valid.patience == 10
    optim, before = config.optim, old.optim
    peak = noam_rate(100, 16, optim.warmup_steps, optim.lr_scale)
    last = noam_rate(1, 16, before.warmup_steps, before.lr_scale)
    assert optim.warmup_steps == 100 and peak == pytest.approx(last, rel=0.05)
    sets = [f"--set={key}" for key in ("train.max_steps=2", "train.batch_tokens=200")]
    assert call("train", "new.toml", *sets, "-q").code == 0
    before, after = records(Path("checkpoints/new"), "valid")
    assert before["step"] == 0 and {"bleu", "old_bleu"} < before.keys() == after.keys()
    for other, culprit in (("x", "x: no"), ("x$HOME", "'x$HOME' cannot be written in a")):
        wrong = call("init", "b", "--src", "text.de", "--tgt", "text.en", "--from", other)
        assert_one_error(wrong, culprit)
    monkeypatch.setattr(new_config, "choose_keys", lambda *_: choose_keys(text_of(20_000), CPU))
    best = f"{run}/step-00000001"
    done = call("init", "b", "--src", "text.en", "--tgt", "text.de", "--from", best)
    assert load_config(Path("b.toml")).train.bidirectional_epochs == 0
    assert f"warning: {best} translates de to en, this text is en to de\n" in done.err


def test_fine_tuning_a_run_with_symbols(work, corpus_dir, tmp_path, call, monkeypatch):
    """Pairs with symbols cannot be joined. Sabotage: keep what suits little text on a fast CPU."""
    run, symbols = tmp_path / "run", ["<bt>"]
    train(tiny_config(corpus_dir, vocab__symbols=symbols, train__max_steps=0), run)
    monkeypatch.setattr(new_config, "this_machine", lambda: CPU)
    done = call("init", "new", "--src", "text.de", "--tgt", "text.en", "--from", run)
    assert done.code == 0, done.err
    assert load_config(Path("new.toml")).vocab.symbols == symbols


LINES = b"a\n" * 300


@pytest.mark.parametrize(
    ("files", "name", "src", "tgt", "culprit"),
    [
        ({}, "new", "text.de", "none.en", "none.en: no such file"),
        ({"a.en": b"1\n2\n"}, "new", "text.de", "a.en", "a.en has 2: they must be line-aligned"),
        ({"a.de": LINES[:38], "a.en": LINES[:38]}, "new", "a.de", "a.en", "19 pairs are too few"),
        ({"a.en": b"\n" * 290 + b"a\n" * 10}, "new", "text.de", "a.en", "10 pairs are too few"),
        ({"a.en": b"a\nGr\xfc\xdfe\n" * 150}, "new", "text.de", "a.en", "a.en, line 2: not UTF-8"),
        ({"a.en.gz": gzip.compress(LINES)[:-10]}, "new", "text.de", "a.en.gz", "cannot be read"),
        ({"new.toml": b"mine"}, "new", "text.de", "text.en", "new.toml: exists already"),
        ({}, "none/new", "text.de", "text.en", "none/new.toml: there is no folder /"),
        ({}, "a\nb", "text.de", "text.en", "'a\\nb.toml' cannot be written in a configuration"),
        ({"b\udcff.en": LINES}, "new", "text.de", "b\udcff.en", "'b\\udcff.en' cannot be written"),
        ({}, "new", "text.txt", "text.en", "text.txt: its name does not end in a language"),
        ({}, "new", "text.de", "a.txt", "a language such as .de; give --tgt-lang"),
        ({}, "new", "text.de", "text.de", "are both de; give --src-lang and --tgt-lang"),
        ({"$HOME.en": LINES}, "new", "text.de", "$HOME.en", "'$HOME.en' cannot be written in a"),
        ({"~/x.en": LINES}, "new", "text.de", "~/x.en", "'~/x.en' cannot be written in a"),
    ],
)
def test_mistakes(work, monkeypatch, call, files, name, src, tgt, culprit):
    """One line each, and nothing written."""
    monkeypatch.setenv("HOME", str(work))
    for file, content in files.items():
        Path(file).parent.mkdir(exist_ok=True)
        Path(file).write_bytes(content)
    before, result = sorted(os.listdir()), call("init", name, "--src", src, "--tgt", tgt)
    assert_one_error(result, culprit)
    assert sorted(os.listdir()) == before
    assert not Path("new.toml").exists() or Path("new.toml").read_text() == "mine"


def test_a_folder_behind_a_symbolic_link(work, call):
    """Its `..` is the parent of what it links to. Sabotage: count the folders of the path."""
    Path("real/deep").mkdir(parents=True)
    Path("link").symlink_to("real/deep")
    write_pairs(Path("real"), "text", [("other", "other")] * 300)
    assert call("init", "link/new", "--src", "text.de", "--tgt", "text.en").code == 0
    assert load_config(Path("link/new.toml")).data.path == str(work)


def test_a_text_is_not_its_own_translation(work, call):
    words = "--src", "text.de", "--tgt", "./text.de", "--src-lang", "de", "--tgt-lang", "en"
    assert_one_error(call("init", "new", *words), "text.de: is --src and --tgt")


SLOW = new_config.Machine("a slow machine", has_gpu=False, is_fast=False)
CPU = new_config.Machine("a CPU with bf16", has_gpu=False, is_fast=True)
GPU = new_config.Machine("a GPU", has_gpu=True, is_fast=True)


def text_of(pairs: int) -> TextStatistics:
    """Makes statistics of a text with many words."""
    means = {"words_per_line": 7.0, "characters_per_line": 33.6}
    return TextStatistics(pairs, 0, **means, distinct_words=10**6, characters=100)


def chosen(pairs: int, machine: new_config.Machine) -> Config:
    keys = choose_keys(text_of(pairs), machine)
    return new_config._parse({"data.path": "x", **keys}, Path("x.toml"))


SIZES = [
    # pairs, machine; vocab size, width, d_ff, layers, dropout, minutes; sampling, Muon, both ways
    (40, CPU, 2_000, 256, 1024, 3, 0.3, 60, 0.05, True, 40),
    (10_000, CPU, 4_000, 256, 1024, 3, 0.3, 60, 0.05, True, 0),
    (20_000, CPU, 6_000, 256, 1024, 3, 0.3, 60, 0.05, True, 20),
    (25_000, CPU, 6_000, 256, 1024, 3, 0.3, 60, 0.0, False, 0),
    (99_999, CPU, 6_000, 256, 1024, 3, 0.3, 60, 0.0, False, 0),
    (100_000, CPU, 8_000, 256, 1024, 4, 0.1, 90, 0.0, True, 0),
    (299_999, CPU, 8_000, 256, 1024, 4, 0.1, 90, 0.0, True, 0),
    (5_000_000, CPU, 8_000, 256, 1024, 4, 0.0, 90, 0.0, True, 0),
    (9_999, GPU, 2_000, 256, 1024, 3, 0.3, 60, 0.05, True, 40),
    (24_999, GPU, 6_000, 256, 1024, 3, 0.3, 60, 0.05, True, 20),
    (25_000, GPU, 6_000, 256, 1024, 3, 0.3, 60, 0.05, True, 0),
    (99_999, GPU, 6_000, 256, 1024, 3, 0.3, 60, 0.05, True, 0),
    (100_000, GPU, 10_000, 512, 1024, 6, 0.3, 120, 0.0, False, 0),
    (500_000, GPU, 16_000, 512, 2048, 6, 0.1, 480, 0.0, False, 0),
    (1_999_999, GPU, 16_000, 512, 2048, 6, 0.1, 480, 0.0, False, 0),
    (5_000_000, GPU, 37_000, 512, 2048, 6, 0.1, 1440, 0.0, False, 0),
    (1, SLOW, 2_000, 256, 1024, 3, 0.3, 60, 0.05, True, 0),
    (10_000, SLOW, 4_000, 192, 768, 3, 0.3, 60, 0.0, True, 0),
    (20_000, SLOW, 6_000, 192, 768, 3, 0.3, 60, 0.0, True, 0),
    (100_000, SLOW, 8_000, 256, 1024, 4, 0.1, 90, 0.0, True, 0),
]


@pytest.mark.parametrize(("pairs", "machine", "values"), [(*row[:2], row[2:]) for row in SIZES])
def test_sizes_by_pairs(pairs, machine, values):
    """Each limit begins its row; pairs without text do not count (benchmarks/LOG.md)."""
    config = chosen(pairs, machine)
    model, train, optim = config.model, config.train, config.optim
    sizes = config.vocab.size, model.d_model, model.d_ff, model.encoder_layers, model.dropout
    recipe = config.vocab.sampling, optim.muon, train.bidirectional_epochs
    assert (*sizes, train.max_minutes, *recipe) == values
    few = train.bidirectional_epochs == 40  # fewer than 10,000 pairs, on a fast machine
    assert train.join_pairs == (few or model.d_model == 192)
    assert model.encoder_layers == model.decoder_layers and config.valid.every == train.save_every
    with_empty = replace(text_of(pairs + 600_000), empty=600_000)
    assert choose_keys(with_empty, machine) == choose_keys(text_of(pairs), machine)
    for text in (text_of(pairs), with_empty):
        assert text.train_pairs == pairs - 2 * text.held_out


def test_a_third_of_an_hour_has_reversed_pairs():
    """Not the whole of it, if the lines are long, also without spaces.

    Sabotage: bound nothing; count pairs alone; count words.
    """
    text = replace(text_of(9_500), words_per_line=1.0, characters_per_line=125.0)
    epochs = [choose_keys(text, each)["train.bidirectional_epochs"] for each in (CPU, GPU)]
    steps = epochs[0] * 9_500 * 50 / 2_000
    assert 2_000 < steps < 3_000 and epochs[1] == 40


@pytest.mark.parametrize("name", ["multi30k", "news-cpu", "wmt16-base"])
def test_sizes_are_those_of_the_repository(name):
    recipe = flat_values(load_config(Path(__file__).parents[2] / f"configs/{name}.toml"))
    keys = """size sampling d_model d_ff n_heads encoder_layers decoder_layers dropout muon
        warmup_steps lr_scale batch_tokens bidirectional_epochs join_pairs""".split()
    pairs = {"multi30k": 29_000, "news-cpu": 300_000, "wmt16-base": 4_500_000}[name]
    values = flat_values(chosen(pairs, CPU if name == "news-cpu" else GPU))
    different = {key for key in recipe if recipe[key] != values[key]}
    assert not {key for key in different if key.partition(".")[2] in keys}


TEXTS = {
    "one sentence": [("Das ist ein Haus .", "This is a house .")] * 30,
    "long words": [("Donaudampfschifffahrtsgesellschaft" * 3 + str(i), "x") for i in range(50)],
    "numbers": [(f"{i} 1.{i},{i}", f"{i}-{i}/{i}") for i in range(300)],
    "Chinese": [("".join(chr(0x4E00 + 7 * i + j) for j in range(40)), "a") for i in range(400)],
    "one word": [("x", "x")] * 30,
    "emoji": [("😀 😁 😂" + "😃" * i, "🙂") for i in range(25)],
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_vocabulary_of_that_size_can_be_learned(name):
    """From the part that is not held out."""
    text = measure_text(TEXTS[name])
    size = choose_keys(text, CPU)["vocab.size"]
    words = Counter(w for pair in TEXTS[name][: text.train_pairs] for s in pair for w in s.split())
    assert train_vocabulary([words], VocabConfig(size=size)).src.size == size


@pytest.mark.parametrize(
    ("threads", "bf16", "is_fast"),
    [(2, True, True), (1, True, False), (4, False, True), (3, False, False)],
)
def test_this_machine(monkeypatch, threads, bf16, is_fast):
    """Threads, GPU; a CPU is fast with two threads in bf16, or four in fp32."""
    for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.setattr(torch.cpu, name, lambda: bf16)
    torch.set_num_threads(threads)
    described = f"{threads} CPU thread{'s' * (threads > 1)}, no GPU"
    assert new_config.this_machine() == (described, False, is_fast)
    with SimulatedCuda():
        assert new_config.this_machine() == ("simulated", True, True)


def test_counts_of_a_text():
    """Words and characters, but no rare one, which becomes bytes."""
    pairs = [("üü üü", "c"), ("a", " "), ("", "d e f"), ("x", "y\tz")]
    words = {"words_per_line": 1.25, "characters_per_line": 1.5, "distinct_words": 9}
    problems = {"src_problems": "1 empty", "tgt_problems": "1 empty, 1 with tabs"}
    assert measure_text(pairs) == TextStatistics(4, 2, **words, characters=9, **problems)
    assert measure_text([("a" * 9_000 + "b" * 1_000, "€")]).characters == 2
    assert measure_text([("ä", "á")]) == measure_text([("a\u0308", "a\u0301")])  # as training text


def test_sizes_by_the_characters():
    """A script with many characters needs a piece for each."""
    for characters, words, size in ((1000, 10**6, 2000), (1001, 10**6, 3001), (100, 3001, 1861)):
        text = replace(text_of(40), characters=characters, distinct_words=words)
        assert choose_keys(text, CPU)["vocab.size"] == size
