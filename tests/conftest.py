"""A corpus to copy, a model that has learned to copy it, and ways to run the program."""

import atexit
import gc
import io
import logging
import os
import random
import resource
import subprocess
import sys
import tracemalloc
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

# What fits in memory, and how threads share it, is expected for one.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["COLUMNS"] = "80"  # not those of the terminal, to which help is cut

import fork_server
import pytest
from hypothesis import HealthCheck, settings

from transformer_mt.system.process_settings import configure_libraries

configure_libraries()  # works only before torch is imported
_STATE = TemporaryDirectory()
atexit.register(_STATE.cleanup)
os.environ["XDG_STATE_HOME"] = _STATE.name  # what is trained in tests is not the user's

import torch
import torch.nn.functional as F
from sacrebleu.significance import PairedTest
from safetensors.torch import load_file
from sentencepiece import SentencePieceTrainer

from transformer_mt.checkpoints.layout import MODEL
from transformer_mt.checkpoints.run_directory import find_checkpoint
from transformer_mt.cli.program import main
from transformer_mt.config.keys import Config, DataConfig, VocabConfig
from transformer_mt.config.loading import parse_config
from transformer_mt.model.transformer import Transformer
from transformer_mt.system.console import logger
from transformer_mt.system.files import parse_json, sha256
from transformer_mt.system.manifest import read_manifest, write_manifest
from transformer_mt.text.corpus import load_split
from transformer_mt.text.prepared import PreparedCorpus, prepare
from transformer_mt.text.vocabulary import Vocabulary, train_vocabulary
from transformer_mt.training import flops
from transformer_mt.training.engine import Engine
from transformer_mt.training.run import train
from transformer_mt.training.validation import Validator
from transformer_mt.translation.export import export
from transformer_mt.translation.options import LoadOptions, SearchOptions, TranslateOptions

# A run measures the peak of the device, which takes longer than a few steps of a tiny model.
flops._SIZES |= {"cpu": 64, "cuda": 32}
PairedTest._DEFAULT_SAMPLES["ar"] = 200  # random exchanges of sentences, in place of 10,000
os.fsync = lambda descriptor: None  # what tests write need not outlive the machine
# A busy machine takes longer than the 200 ms that an example may take by default.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")


def pytest_collection_finish() -> None:
    """Lets garbage collection, which the program asks for, pass over what is imported."""
    gc.freeze()


ALPHABET = "abcdefghijklmnopqrstuvwxyz"
LETTERS = f"{ALPHABET}.,;!"

NASTY = [
    b"",
    b"   ",
    b"\t",
    "abc\u2028de".encode(),
    "abc\x85de".encode(),
    b"ab\x0ccd",
    b"abc de\r",
    b"a\x00b",
    b"ab \xff\xfe cd",
    b"\xef\xbb\xbfab",
    "\u200b \U0001f600".encode(),
    b"x" * 5_000,
]
"""Lines that other programs drop, split or stumble over."""


def copy_lines(count: int, seed: int) -> list[str]:
    """Makes distinct lines of one to six short random words."""
    rng = random.Random(seed)
    lines: dict[str, None] = {}
    while len(lines) < count:
        words = ("".join(rng.choices(ALPHABET, k=rng.randint(1, 3))) for _ in range(6))
        lines[" ".join(list(words)[: rng.randint(1, 6)])] = None
    return list(lines)


def write_lines(folder: Path, **texts: Iterable[str]) -> None:
    """Writes each text to the file of its name."""
    for name, lines in texts.items():
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def write_pairs(folder: Path, name: str, pairs: Sequence[tuple[str, str]]) -> None:
    """Writes NAME.de and NAME.en."""
    folder.mkdir(parents=True, exist_ok=True)
    src, tgt = zip(*pairs, strict=True)
    write_lines(folder, **{f"{name}.de": src, f"{name}.en": tgt})


def write_copy_corpus(folder: Path, sizes: dict[str, int]) -> None:
    """Writes splits whose two sides are the same; no line is in two splits."""
    lines = iter(copy_lines(sum(sizes.values()), seed=0))
    for split, count in sizes.items():
        write_pairs(folder, split, [(line, line) for line in islice(lines, count)])


@pytest.fixture(scope="session")
def corpus_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Gives a folder with a corpus to copy."""
    folder = tmp_path_factory.mktemp("corpus")
    write_copy_corpus(folder, {"train": 4000, "validation": 60, "test": 60})
    return folder


def tiny_values(corpus_dir: Path, **changes: object) -> dict[str, dict[str, object]]:
    """Gives a small configuration; changes are dotted keys with __ for the dot."""
    sizes = {"d_model": 16, "d_ff": 32, "n_heads": 4, "encoder_layers": 1, "decoder_layers": 1}
    steps = {"max_steps": 20, "save_every": 5, "log_every": 1, "precision": "fp32", "device": "cpu"}
    text = {"path": str(corpus_dir), "prepared_dir": str(corpus_dir.parent / "prepared")}
    optim = {"warmup_steps": 100, "max_grad_norm": 1.0}
    values: dict[str, dict[str, object]] = {"vocab": {"size": 292}, "optim": optim}
    values |= {"data": {**text, "valid": "validation[:12]", "max_length": 60}}
    values |= {"model": {**sizes, "norm": "pre"}, "train": {"batch_tokens": 500, **steps}}
    values |= {"valid": {"every": 10}}
    for key, value in changes.items():
        section, name = key.split("__")
        values[section][name] = value
    return values


def tiny_config(corpus_dir: Path, **changes: object) -> Config:
    return parse_config(tiny_values(corpus_dir, **changes), "tests")


@pytest.fixture(scope="session")
def prepared(corpus_dir: Path) -> PreparedCorpus:
    """Gives the vocabulary and the encoded pairs of the small configuration."""
    return prepare(tiny_config(corpus_dir))


def write_toml(path: Path, values: dict[str, dict[str, object]]) -> Path:
    """Writes a configuration file."""
    lines = []
    for section, keys in values.items():
        lines.append(f"[{section}]")
        for key, value in keys.items():
            shown = str(value).lower() if isinstance(value, bool) else repr(value)
            lines.append(f"{key} = {shown}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def write_config(folder: Path, corpus_dir: Path, **changes: object) -> Path:
    """Writes the small configuration to tiny.toml in a folder."""
    return write_toml(folder / "tiny.toml", tiny_values(corpus_dir, **changes))


def records(run_dir: Path, kind: str | None = None) -> list[dict[str, Any]]:
    """Reads the metrics, of a kind or all, up to a line that a killed process began."""
    lines = (run_dir / "metrics.jsonl").read_text().splitlines(keepends=True)
    whole = [parse_json(line) for line in lines if line.endswith("\n")]
    return [record for record in whole if kind in (None, record["kind"])]


def losses(run_dir: Path) -> list[float]:
    return [record["loss"] for record in records(run_dir, "train")]


def weights(path: Path, name: str = MODEL) -> dict[str, torch.Tensor]:
    return load_file(path / name)


def around_steps(monkeypatch, before=lambda engine, step: None, after=lambda engine, step: None):
    """Calls functions with the engine and the number of each training step."""
    real = Engine.train_step

    def train_step(engine, step, *arguments) -> None:
        before(engine, step)
        real(engine, step, *arguments)
        after(engine, step)

    monkeypatch.setattr(Engine, "train_step", train_step)


def equal(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[k], right[k]) for k in left)


def pairs_of(config: DataConfig, split: object) -> list[tuple[str, str]]:
    """Reads a split as pairs."""
    pairs = load_split(config, split)
    return list(zip(pairs.src, pairs.tgt, strict=True))


def learn_elsewhere(text: Iterable[str], **options: object) -> bytes:
    """Trains a SentencePiece model as another program may; gives its file."""
    writer = io.BytesIO()
    SentencePieceTrainer.train(sentence_iterator=iter(text), model_writer=writer, **options)
    return writer.getvalue()


def replace_file(checkpoint: Path, name: str, content: bytes) -> None:
    """Puts a file into a checkpoint, with a manifest that is right."""
    (checkpoint / name).write_bytes(content)
    write_manifest(checkpoint, {**read_manifest(checkpoint), name: sha256(checkpoint / name)})


def make_copying(model: Transformer) -> None:
    """Sets the weights of the model of `copy_run` so that it copies nearly all lines.

    The first half of the width, where sinusoids are fast, tells positions apart; the second half,
    where they are nearly 0 and 1, holds the token. Cross-attention finds the source position that
    is the target position, and copies its token. The rest of the model is random and weak, so that
    results depend on all of it.
    """
    cross = model.decoder[0].cross_attention
    half, heads = model.d_model // 2, cross.n_heads
    tokens, slow = model.src_embedding[:, half:], torch.tensor([0.0, 1.0]).repeat(half // 2)
    centered = tokens - tokens.mean(1, keepdim=True)
    tokens.copy_((F.normalize(centered) * half**0.5 - slow) / model.d_model**0.5)
    model.src_embedding[:, :half] = 0
    model.src_embedding[4:260, half - 1] = -1 / 16  # bytes, which the bias makes unlikely
    model.decoder_norm.bias[half - 1] = 50
    position = torch.eye(model.d_model)[: model.d_model // heads]  # the fastest sinusoids
    position[:, half:] = -1 / half  # the mean that layer norm subtracts
    token = torch.eye(model.d_model).roll(half, 1)
    token[half:] = 0
    cross.q.weight.copy_(20 * position.repeat(heads, 1))
    cross.kv.weight.copy_(torch.cat((position.repeat(heads, 1), token)))
    cross.out.weight.copy_(4 * token.T)
    for layer in (*model.encoder, *model.decoder):
        layer.self_attention.out.weight *= 0.12
        layer.feed_forward.outer.weight *= 0.12
    model.decoder_norm.weight.fill_(2)


@pytest.fixture(scope="session")
def copy_run(corpus_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Gives a run whose model copies lines of lower-case words, without training."""
    initialise = Transformer._initialise

    def initialise_to_copy(model: Transformer) -> None:
        initialise(model)
        with torch.no_grad():
            make_copying(model)

    # Longer lines are split; the weights stay what they are.
    text = {"data__valid": "validation", "data__max_length": 24, "optim__warmup_steps": 1_000_000}
    model = {"model__d_model": 64, "model__d_ff": 128, "model__dropout": 0.0}
    changes = {"optim__label_smoothing": 0.0, "train__max_steps": 1, "valid__every": 1}
    config = tiny_config(corpus_dir, **text, **model, **changes)
    run_dir = tmp_path_factory.mktemp("runs") / "copy"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Transformer, "_initialise", initialise_to_copy)
        train(config, run_dir)
    return run_dir


@pytest.fixture(scope="session")
def exported_run(copy_run: Path) -> Path:
    """Gives the same model as exported for CTranslate2."""
    return export(find_checkpoint(copy_run), copy_run.parent / "exported")


@pytest.fixture(scope="session")
def untrained_run(corpus_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Gives a run of one step, for tests that compare bytes of translations and not their sense."""
    run_dir = tmp_path_factory.mktemp("runs") / "untrained"
    steps = {"train__max_steps": 1, "train__save_every": 1}
    train(tiny_config(corpus_dir, data__train="train[:600]", **steps), run_dir)
    return run_dir


@pytest.fixture
def untranslated(monkeypatch) -> None:
    """Validates without translating: a model of a few steps writes each line to its limit."""
    monkeypatch.setattr(Validator, "_translate", lambda self, *_: ([""] * len(self._pairs), 0.0))


@pytest.fixture(scope="session")
def vocab() -> Vocabulary:
    """Gives a vocabulary whose pieces are characters, spaces included."""
    return train_vocabulary([Counter({LETTERS: 1})], VocabConfig(kind="char", size=40))


def translate_options(**options: object) -> TranslateOptions:
    """Gives the options of `translate`, by default greedy search."""
    return TranslateOptions(LoadOptions(), SearchOptions(), **options)


@pytest.fixture(autouse=True)
def _process():
    """Removes handlers of messages; keeps the thread count, on which bit-equality depends."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    logger.handlers.clear()
    logger.setLevel(logging.NOTSET)


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "transformer_mt", *map(str, arguments)]


def run_program(*arguments: object, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Runs the program to its end in a forked process, which is quicker."""
    return fork_server.run(command(*arguments), stdin, env={**os.environ, "HF_HUB_OFFLINE": "1"})


HOSTILE_JSON = ["null", "[]", "NaN", "[" * 500 + "]" * 500, "[" * 9999]
"""Values that nothing in our files may have."""


def refuses(error, message: str, function, /, *arguments, **options) -> Any:
    """Checks that a call raises an error whose text a pattern matches; gives the error."""
    with pytest.raises(error, match=message or None) as raised:
        function(*arguments, **options)
    return raised.value


class Called(NamedTuple):
    """What a command gave: exit code, stdout and stderr."""

    code: int
    out: bytes
    err: str


def peak_memory(function, /, *arguments: object) -> int:
    """Returns the most bytes held during a call, by Python and NumPy.

    Garbage is collected before it and not during it, since the figure depends on the moment.
    """
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        function(*arguments)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        gc.enable()


def assert_one_error(called: Called, culprit: str) -> None:
    """Checks that a command has ended in one line, which names the culprit, and exit code 2."""
    last = called.err.splitlines()[-1]
    assert called.code == 2 and not called.out and last.startswith("error: ") and culprit in last
    assert called.err.count("error: ") == 1 and "Traceback" not in called.err


@pytest.fixture
def call(monkeypatch, capfdbinary):
    """Runs a command in this process, with stdin from a file."""

    def call(*arguments: object, stdin: object = os.devnull) -> Called:
        with monkeypatch.context() as patch, open(stdin) as source:
            patch.setattr("sys.stdin", source)
            patch.setattr(sys, "argv", ["transformer-mt", *map(str, arguments)])
            try:
                main()
                code = 0
            except SystemExit as stop:
                code = int(stop.code or 0)
        out, err = capfdbinary.readouterr()
        return Called(code, out, err.decode())

    return call


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """Lets no file grow beyond this, as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
