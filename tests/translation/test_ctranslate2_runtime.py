"""Exported models behind the same interface: what they translate, record and refuse."""

import json
import re
import shutil
from collections import Counter
from pathlib import Path
from unittest.mock import Mock

import ctranslate2
import pytest
from conftest import NASTY, assert_one_error, copy_lines, refuses, replace_file, tiny_config

import transformer_mt
from transformer_mt.checkpoints.evaluations import read_evaluations
from transformer_mt.checkpoints.run_directory import find_checkpoint
from transformer_mt.config.keys import VocabConfig
from transformer_mt.errors import CheckpointError, ConfigError, DataError
from transformer_mt.text.vocabulary import train_vocabulary
from transformer_mt.training.run import train
from transformer_mt.translation.export import export
from transformer_mt.translation.options import LoadOptions, SearchOptions
from transformer_mt.translation.translation_model import build_translation_model, find_models

LINES = [line.decode(errors="replace") for line in NASTY if len(line) < 100] + copy_lines(40, 8)
LINES += [" ".join(LINES[-8:]), LINES[-1]]  # longer than the model's training lines; a repeated one


@pytest.fixture(scope="module")
def models(copy_run, exported_run):
    return transformer_mt.load(copy_run), transformer_mt.load(exported_run)


def assert_same(expected, actual, options: SearchOptions, lines=LINES) -> None:
    """Compares two models, of which each may drop another of two that end at the same position."""
    both = (model.translator(options).n_best(lines) for model in (expected, actual))
    for ours, others in zip(*both, strict=True):
        assert len(others) == len(ours)
        ours, others = ours[:2], others[:2]
        assert [t.text for t in others] == [t.text for t in ours]
        assert [(t.parts, t.is_cut) for t in others] == [(t.parts, t.is_cut) for t in ours]
        scores = [t.score for t in ours]
        assert [t.score for t in others] == pytest.approx(scores, abs=1e-4, nan_ok=True)


@pytest.mark.parametrize(
    "options",
    [
        SearchOptions(),
        SearchOptions(with_scores=True),
        SearchOptions(3, 0.0, n_best=3, batch_tokens=60),
        SearchOptions(4, 1.0, n_best=2),
    ],
)
def test_it_translates_as_pytorch_does(models, options):
    """Empty, hostile, long and repeated lines: hypotheses, scores and parts."""
    assert_same(*models, options)


def test_outputs_end_at_the_limit_of_their_own_source(corpus_dir, tmp_path):
    """Of a model that has learned nothing, in batches of several lengths."""
    options, lines = SearchOptions(3, 0.6, n_best=3, batch_tokens=1000), LINES[-20:]
    train(tiny_config(corpus_dir, train__max_steps=0, model__n_heads=2), tmp_path / "run")
    export(find_checkpoint(tmp_path / "run"), tmp_path / "out")
    expected, actual = transformer_mt.load(tmp_path / "run"), transformer_mt.load(tmp_path / "out")
    assert any(t.is_cut for [t, *_] in expected.translator(options).n_best(lines))
    assert_same(expected, actual, options, lines)
    assert_same(expected, actual, SearchOptions(batch_tokens=1000), lines)


def test_scores_of_given_translations(models):
    """Are the checkpoint's, for empty lines too; a line without room is refused."""
    ours, exported = models
    sources, hypotheses = [*LINES, "abc", ""], [*LINES[::-1], "", "abc"]
    expected = pytest.approx(ours.score(sources, hypotheses), abs=1e-3)
    assert exported.score(sources, hypotheses) == expected and exported.score([], []) == []
    [long] = exported.vocab.src.decode([exported.vocab.src.encode([" ".join(LINES)])[0][:10] * 105])
    assert 1024 < len(exported.vocab.src.encode([long])[0]) < 1072
    expected = pytest.approx(ours.score([long], ["abc"]), abs=1e-3)
    assert exported.score([long], ["abc"]) == expected
    message = "a line of 2,000 pieces: the exported model has 1,072"
    refuses(DataError, message, exported.score, ["abc"], [" ".join(["xyz"] * 500)])


@pytest.mark.parametrize("stored", ["float16", "int16"])
def test_a_type_that_the_cpu_lacks(copy_run, tmp_path, call, monkeypatch, stored):
    """Is told by our message, which --quiet stops. Sabotage: leave the type to CTranslate2."""
    exported = export(find_checkpoint(copy_run), tmp_path / "out", stored)
    monkeypatch.setattr(ctranslate2, "get_supported_compute_types", lambda device: {"float32"})
    (tmp_path / "in").write_text("a b\n")
    done = call("translate", exported, "--quiet", "--input", tmp_path / "in")
    assert (done.out, done.err) == (b"a b\n", "")
    runtime = transformer_mt.load(exported, device="cpu").runtime
    assert runtime._translator.compute_type == "float32"
    monkeypatch.setattr(ctranslate2, "get_supported_compute_types", lambda device: {stored})
    monkeypatch.setattr(ctranslate2, "Translator", supporting := Mock())
    transformer_mt.load(exported, device="cpu")
    assert supporting.call_args.kwargs["compute_type"] == "default"


@pytest.mark.parametrize(("gpus", "option"), [(1, "auto"), (1, "cpu"), (0, "auto")])
def test_devices(exported_run, monkeypatch, gpus, option):
    """A GPU for each process where there is one, else a batch for each thread."""
    on_gpu, on_cpu = ("cuda", 3, 1, 16384), ("cpu", 0, 2, 2048)
    device, index, threads, batch_tokens = on_gpu if gpus and option == "auto" else on_cpu
    load = Mock()
    monkeypatch.setattr(ctranslate2, "get_cuda_device_count", lambda: gpus)
    monkeypatch.setattr(ctranslate2, "get_supported_compute_types", lambda device: {"float32"})
    monkeypatch.setattr(ctranslate2, "Translator", load)
    for name, value in {"RANK": "3", "LOCAL_RANK": "3", "WORLD_SIZE": "4"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    runtime = transformer_mt.load(exported_run, device=option, max_length=1021).runtime
    assert (runtime.device_type, runtime.batch_tokens) == (device, batch_tokens)
    assert runtime.chunk_lines == (512, 4096)
    numbers = {"device_index": index, "inter_threads": threads, "intra_threads": 1}
    load.assert_called_once_with(str(exported_run), device, **numbers, compute_type="default")


def test_scores_are_recorded_beside_it(copy_run, tmp_path, call):
    """The run's BLEU, as system and as baseline; the record names the runtime and the weights."""
    exported = export(find_checkpoint(copy_run), tmp_path / "out", "int8")
    (tmp_path / "text").write_text("".join(f"{line}\n" for line in copy_lines(30, 9)))
    texts = "--src", tmp_path / "text", "--ref", tmp_path / "text"
    done = call("evaluate", exported, *texts, "--baseline", copy_run, "--json")
    result = json.loads(done.out)
    assert result["precision"] == "CTranslate2 int8" and result["step"] == 1, done.err
    assert result["bleu"] > 75 and result["baseline"] == str(find_checkpoint(copy_run).path)
    back = json.loads(call("evaluate", copy_run, *texts, "--baseline", exported, "--json").out)
    assert back["differences"][0]["baseline"] == result["bleu"]
    [record] = read_evaluations(exported)
    assert str(record.search) == "greedy, CTranslate2 int8" and record.checkpoint == "out"
    table = call("compare", copy_run, exported, "--format", "json").out.decode()
    assert "greedy, CTranslate2 int8" in table and table.count('"run"') == 2


VOCABULARY = "shared_vocabulary.json"
WRONG = [
    (["--raw"], "--raw has no effect on an exported model, .*exported; "),
    (["--precision", "fp32"], "--precision has no effect on an exported model, .*exported;"),
    (["--max-length", "9999"], "maximum length 9999: .*exported has positions for 1021 pieces"),
    (["--device", "cuda"], "device cuda: CTranslate2 finds no CUDA device"),
    (["RUN", "--ensemble"], "exported: an exported model cannot be part of an ensemble"),
    (["--beam-size", "200"], "beam size 200: choose 1 to 146, half"),
]


@pytest.mark.parametrize(("options", "message"), WRONG, ids=[options[0] for options, _ in WRONG])
def test_what_it_refuses(copy_run, exported_run, tmp_path, call, options, message):
    """Options of PyTorch alone, in a line that names the option and the directory."""
    words = [copy_run if word == "RUN" else word for word in options]
    (tmp_path / "in").write_text("abc\n")
    done = call("translate", exported_run, *words, "--input", tmp_path / "in")
    assert_one_error(done, "")
    assert re.search(message, done.err), done.err


def test_what_needs_the_checkpoint(models, exported_run, tmp_path, call):
    """Says so, in the library and in commands."""
    message = "exported: an exported model gives only .* made from, step-00000001$"
    for ask in (models[1].attention, models[1].encoder_output, models[1].logits):
        refuses(ConfigError, message, ask, "abc")
    refuses(ConfigError, message, models[1].sample, ["abc"])
    assert repr(models[1]).endswith(": de to en, CTranslate2 float32 on cpu>")
    for words in (("export", exported_run, "-o", tmp_path / "x"), ("average", exported_run)):
        assert_one_error(call(*words), str(exported_run))
    message = "exported: an exported model; name the run"
    refuses(CheckpointError, message, find_checkpoint, exported_run)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("model.bin", b"x", "damaged"),
        ("export.json", b"{}", "damaged"),
        ("manifest.json", None, "cannot be read"),
        ("export.json", None, "missing"),
    ],
)
def test_damage_is_named(exported_run, tmp_path, name, content, message):
    folder = shutil.copytree(exported_run, tmp_path / "copy")
    (folder / name).unlink()
    if content:
        (folder / name).write_bytes(content)
    refuses(CheckpointError, f"copy/{name}: {message}", transformer_mt.load, folder)


@pytest.mark.parametrize("name", ["model.bin", VOCABULARY, "vocab.model", "config.json"])
def test_files_of_two_exports_are_not_mixed(exported_run, tmp_path, name):
    """Though the manifest is right. Sabotage: compare files with the manifest alone."""
    folder = Path(shutil.copytree(exported_run, tmp_path / "copy"))
    content = (folder / name).read_bytes()
    if name == "vocab.model":
        content = train_vocabulary([Counter({"ab": 1})], VocabConfig(size=263)).src_model
    replace_file(folder, name, content.replace(b'"a"', b'"b"', 1) + b"\n")
    message = f"^{folder / name}: not the file that `export` wrote$"
    refuses(CheckpointError, message, transformer_mt.load, folder)


def test_a_model_that_is_replaced_before_it_is_loaded(exported_run, untrained_run, tmp_path):
    """A link is switched while a job lists its files. Sabotage: leave out the second look."""
    link, other = tmp_path / "current", tmp_path / "new"
    export(find_checkpoint(untrained_run), other)
    link.symlink_to(exported_run)
    models = find_models([link])
    link.unlink()
    link.symlink_to(other)
    refuses(CheckpointError, "was replaced", build_translation_model, models, LoadOptions())


def test_what_export_did_not_write(exported_run, tmp_path):
    """A record that only a later or an earlier version knows, and a model of CTranslate2 alone."""
    others = shutil.ignore_patterns("export.json", "manifest.json")
    shutil.copytree(exported_run, tmp_path, ignore=others, dirs_exist_ok=True)
    refuses(CheckpointError, "contains no checkpoint", transformer_mt.load, tmp_path)
    shutil.copy(exported_run / "manifest.json", tmp_path)
    record = json.loads((exported_run / "export.json").read_text())
    for change, message in (
        ({"format": 9}, "format 9, not 1; use the version of transformer-mt that wrote it"),
        ({"config": {"a": {}}}, r"unknown key config\.a; use a newer transformer-mt"),
        ({"files": None}, r"damaged, or written by an earlier transformer-mt \(files is missing\)"),
    ):
        values = {key: value for key, value in {**record, **change}.items() if value is not None}
        replace_file(tmp_path, "export.json", json.dumps(values).encode())
        refuses(CheckpointError, f"export.json: {message}", transformer_mt.load, tmp_path)
    earlier = shutil.copytree(exported_run, tmp_path / "earlier")
    replace_file(earlier, "export.json", json.dumps({**record, "files": {}}).encode())
    message = "config.json: not the file that `export` wrote"
    refuses(CheckpointError, message, transformer_mt.load, earlier)
