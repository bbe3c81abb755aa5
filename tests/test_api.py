"""The Python API: what docs/translating.md shows, and that the process stays as it was."""

import copy
import json
import math
import os
import pickle
import re
import subprocess
import sys
from collections import Counter, deque
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from threading import Barrier

import numpy as np
import pytest
import torch
from checkpoints.small_checkpoint import VOCAB, save_model, small_config
from conftest import copy_lines, records, refuses

import transformer_mt
from transformer_mt.checkpoints.run_directory import find_checkpoint
from transformer_mt.config.keys import VocabConfig
from transformer_mt.errors import DataError
from transformer_mt.model.transformer import Transformer
from transformer_mt.text.vocabulary import EOS_ID, Vocabulary, train_vocabulary

GUIDE = Path(__file__).parents[1] / "docs" / "translating.md"
LINES = [*copy_lines(30, 21), ""]


@pytest.fixture(scope="module")
def model(copy_run) -> transformer_mt.TranslationModel:
    return transformer_mt.load(copy_run)


def run_python(code: str, *arguments: object) -> str:
    """Runs code in a new process; gives its stdout, and fails if it writes to stderr."""
    program = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return done.stdout


def test_the_lines_of_the_guide(copy_run, tmp_path, monkeypatch, capfd):
    """They run as they stand, with a run in place of the one they name."""
    section = GUIDE.read_text().split("## From Python\n")[1].split("\n## ")[0]
    lines = [line[4:] for line in section.splitlines() if line.startswith("    ")]
    assert 12 <= len(lines) <= 25 and "import transformer_mt" in lines
    code = "\n".join(lines).replace("checkpoints/wmt16-base", str(copy_run))
    assert str(copy_run) in code
    monkeypatch.chdir(tmp_path)
    exec(code, {})
    assert (tmp_path / "attention.png").exists() and capfd.readouterr() == ("", "")


def test_importing_is_lazy():
    """Help, `compare` and the mistakes of `init` need no torch."""
    code = """
import sys
import transformer_mt
heavy = {"torch", "numpy", "datasets", "sacrebleu", "pydantic", "typer", "sentencepiece"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
import transformer_mt.cli.program, transformer_mt.training.new_config
assert not {"torch", "datasets", "numpy"} & set(sys.modules)
import transformer_mt.evaluation.run_comparison  # of `compare`
assert "torch" not in sys.modules
"""
    run_python(code)
    errors = {name for name in vars(transformer_mt.errors) if name[0].isupper()}
    assert errors | {"TranslationModel", "Translation"} <= set(transformer_mt.__all__)
    assert set(transformer_mt.__all__) <= set(dir(transformer_mt))
    for name in transformer_mt.__all__:
        assert getattr(transformer_mt, name).__name__ == name
    with pytest.raises(AttributeError, match="nothing"):
        _ = transformer_mt.nothing


STATE = """
import json, os, random, signal, socket, sys, threading
import numpy, torch

def state():
    backends, numbers = torch.backends, signal.valid_signals()
    return {
        "signals": [str(signal.getsignal(number)) for number in numbers],
        "process": [socket.getdefaulttimeout(), dict(os.environ), str(sys.excepthook), os.getcwd()],
        "active threads": threading.active_count(),
        "threads of an operation": torch.get_num_threads(),
        "modes": [torch.is_grad_enabled(), torch.are_deterministic_algorithms_enabled()],
        "types": [torch.get_float32_matmul_precision(), str(torch.get_default_dtype())],
        "backends": [backends.mkldnn.enabled, backends.cudnn.benchmark],
        "cuda": [backends.cuda.flash_sdp_enabled(), backends.cuda.math_sdp_enabled()],
        "random": [str(random.getstate()), str(numpy.random.get_state())],
        "torch": torch.get_rng_state().tolist(),
    }

before = state()
import transformer_mt
for path in sys.argv[1:]:
    model = transformer_mt.load(path)
    model.translate(["abc de", "f"], beam_size=2)
    model.n_best(["abc de"], n=2)
    model.score(["abc"], ["abc"])
    if not model.checkpoints[0].is_exported:
        model.attention("abc")
    after = state()
    print(json.dumps([key for key in before if before[key] != after[key]]))
"""


def test_the_process_stays_as_it_was(copy_run, exported_run):
    """No signal handler, environment variable, timeout, flag or random state changes; no output.

    But an exported model has threads of its own.
    """
    assert run_python(STATE, copy_run, exported_run) == '[]\n["active threads"]\n'


FORK = """
import os, sys, torch, transformer_mt, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # Python's own, of a fork beside threads
fork = " was loaded before a fork: load models only in the processes that use them"
torch.set_num_threads(2)
for path in sys.argv[1:]:
    model = transformer_mt.load(path)
    calls = [lambda: model.translate(["abc"]), lambda: model.score(["a"], ["b"])]
    calls += [] if model.checkpoints[0].is_exported else [
        lambda: model.attention("a"), lambda: model.logits("a"), lambda: model.encoder_output("a")
    ]
    pid = os.fork()
    if not pid:
        refused = 0
        for call in calls:
            try:
                call()
            except transformer_mt.errors.TransformerMTError as error:
                refused += str(error).endswith(f"{fork}, or start these by spawn")
        os._exit(refused)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), model.translate(["abc"]))
"""


def test_a_model_is_refused_in_a_forked_process(copy_run, exported_run):
    """It would wait for ever for threads that are not there; the parent can go on."""
    assert run_python(FORK, copy_run, exported_run) == "5 ['abc']\n2 ['abc']\n"


@pytest.mark.parametrize("run", ["copy_run", "exported_run"])
def test_a_model_is_neither_pickled_nor_copied(run, request):
    """By Python's own error. Sabotage: leave it to PyTorch, which shares the weights."""
    model = transformer_mt.load(request.getfixturevalue(run))
    spawned = get_context("spawn").Process(target=print, args=(model,))
    message = f"^{re.escape(model.name)} cannot be pickled or copied: pass its path, and load it in"
    for function in (pickle.dumps, copy.deepcopy, copy.copy, lambda _: spawned.start()):
        refuses(TypeError, message, function, model)


@pytest.mark.parametrize("run", ["copy_run", "exported_run"])
def test_several_threads_use_one_model(run, request):
    """From the first call on. Sabotage: decode in a state that the runtime keeps."""
    model = transformer_mt.load(request.getfixturevalue(run))
    torch.set_num_threads(2)
    texts = [LINES[i : i + size] for i, size in ((0, 31), (3, 1), (5, 9), (8, 20))] * 4
    beams, barrier = [1, 3] * 8, Barrier(4, timeout=60)

    def translate(lines: list[str], beam_size: int) -> list[str]:
        barrier.wait()
        return model.translate(lines, beam_size=beam_size)

    with ThreadPoolExecutor(4) as threads:
        results = list(threads.map(translate, texts, beams))
    pairs = zip(texts, beams, strict=True)
    assert results == [model.translate(lines, beam_size=beam) for lines, beam in pairs]


PROGRAM = """
import json, os, sys
os.environ.pop("LRU_CACHE_CAPACITY", None)
from transformer_mt.cli import program
assert "LRU_CACHE_CAPACITY" not in os.environ and "torch" not in sys.modules
sys.argv = ["transformer-mt", "translate", sys.argv[1], "--quiet", "--input", sys.argv[2]]
program.main()
assert os.environ["LRU_CACHE_CAPACITY"] == "64"
print(json.dumps(sorted(sys.modules)))
"""


def test_the_program_makes_settings_and_imports_no_training_code(copy_run, exported_run, tmp_path):
    """Before torch is imported, which an exported model never needs."""
    (tmp_path / "in").write_text("abc de\n")
    text, modules = run_python(PROGRAM, exported_run, tmp_path / "in").split("\n", 1)
    assert text == "abc de" and "ctranslate2" in modules
    assert not {"torch", "safetensors"} & set(json.loads(modules))
    modules = set(json.loads(run_python(PROGRAM, copy_run, os.devnull)))
    assert "torch" in modules and "ctranslate2" not in modules
    packages = {name.split(".")[1] for name in modules if name.startswith("transformer_mt.")}
    assert not packages & {"training", "evaluation", "figures"}, packages
    assert not {"datasets", "sacrebleu"} & modules


def test_translate(model):
    """As many lines as given; `n_best` has the same first, and its scores without penalty."""
    translations = model.translate(LINES, beam_size=3)
    assert len(translations) == len(LINES) and translations[-1] == ""
    n_best = model.n_best(LINES, n=2, beam_size=3)
    assert [line[0].text for line in n_best] == translations
    assert all(len(line) == 2 and line[0].score >= line[1].score for line in n_best)
    assert model.translate([]) == [] == model.n_best([], n=4)
    assert model.translate(["12", "a"]) == model.sample(["12", "a"], top_k=1) == ["12", "a"]
    assert model.n_best([" 1\t2"], n=2) == [[(" 1 2", 0.0, 0, False)] * 2]
    [[only]] = model.n_best(["abc"], n=1, length_penalty=0.0)
    assert only.text == model.translate(["abc"])[0]
    assert [only.score] == pytest.approx(model.score(["abc"], [only.text]), abs=1e-3)


def test_score(model, monkeypatch):
    """All at once, or in another order and smaller batches."""
    hypotheses = [line[::-1] for line in LINES]
    expected = model.score(LINES, hypotheses)
    monkeypatch.setattr("transformer_mt.translation.pytorch_runtime.SCORED_POSITIONS", 40)
    assert model.score(LINES[::-1], hypotheses[::-1]) == pytest.approx(expected[::-1], abs=1e-4)
    assert model.score([], []) == []
    # An empty source has the empty translation for certain; an empty translation has a score.
    impossible, certain, possible = model.score(["", " ", "abc"], ["abc", "", ""])
    assert impossible == -math.inf and certain == 0.0 and -math.inf < possible < -1
    refuses(DataError, "1 hypotheses for 2 sources", model.score, ["a", "b"], ["a"])


def test_what_was_loaded(copy_run, model, tmp_path):
    """Is shown; tests/checkpoints/test_formats.py loads raw weights."""
    path, shown = find_checkpoint(copy_run).path, "de to en, fp32 on cpu>"
    assert repr(model) == f"<TranslationModel {path}: {shown}"
    both = transformer_mt.load(copy_run, copy_run)
    assert repr(both) == f"<TranslationModel {path} and {path}: {shown}"
    assert {model: 1, both: 2}[model] == 1  # as a cache of functions needs it


def test_a_vocabulary_for_each_language(tmp_path):
    """Pieces, scores and limits are those of the side they belong to."""
    other = train_vocabulary([Counter({"xyzabcdefgh": 1})], VocabConfig(kind="char", size=19))
    vocab = Vocabulary(VOCAB.src_model, other.src_model)
    config = small_config(model__tie_embeddings=False)
    torch.manual_seed(1)
    save_model(tmp_path / "step", config, vocab)
    model = transformer_mt.load(tmp_path / "step")
    attention = model.attention("ab", "xyz")
    assert attention.src_pieces == ["▁", "a", "b", "</s>"]
    assert attention.tgt_pieces == ["<s>", "▁", "x", "y", "z"]
    assert attention.predicted_pieces == ["▁", "x", "y", "z", "</s>"]
    shown = "PairAttention(source='ab', src_pieces=['▁', 'a', 'b', '</s>'],"
    assert repr(attention).startswith(shown) and "array" not in repr(attention)
    [ids] = vocab.tgt.encode(["xyz"])
    rows = torch.from_numpy(model.logits("ab", "xyz")).log_softmax(-1)
    total = rows.gather(1, torch.tensor([[*ids, EOS_ID]]).T).sum()
    assert model.score(["ab"], ["xyz"]) == pytest.approx([float(total)], abs=1e-4)
    half = vocab.tgt.size // 2
    assert half > vocab.src.size // 2 and len(model.translate(["ab"], beam_size=half)) == 1
    best = "".join(model.attention("ab").tgt_pieces[1:]).replace("▁", " ")
    assert model.translate(["ab"]) == [best.strip()]


def test_an_interruption_reaches_another_process():
    """As from a pool of processes that train."""
    stop = pickle.loads(pickle.dumps(transformer_mt.Interrupted(15)))
    assert (str(stop), stop.exit_code) == ("stopped by signal 15", 143)


def test_attention(model):
    """Rows and columns are pieces, every row sums to 1, and nothing attends to the future."""
    weights = model.attention("abc de f", "abc de")
    src, tgt = len(weights.src_pieces), len(weights.tgt_pieces)
    shapes = ((weights.encoder, src, src), (weights.decoder, tgt, tgt), (weights.cross, tgt, src))
    for layers, queries, keys in shapes:
        assert len(layers) == 1
        for array in layers:
            assert array.shape == (4, queries, keys) and array.dtype == np.float32
    translated = model.attention("abc de f")
    text = "".join(translated.tgt_pieces[1:]).replace("▁", " ").strip()
    assert text == model.translate(["abc de f"])[0]
    assert translated.predicted_pieces == [*translated.tgt_pieces[1:], "</s>"]
    assert model.attention("abc de f", "abc de") not in [weights]  # arrays do not say if equal
    empty = model.attention("")
    assert (empty.tgt_pieces, empty.predicted_pieces) == (["<s>"], ["</s>"])


def test_attention_while_another_thread_computes(model, monkeypatch):
    """Has no weights of the other. Sabotage: record those of any thread."""
    compute, expected = Transformer.decoder_output, model.attention("abc", "de")
    with ThreadPoolExecutor(1) as other:

        def compute_twice(*arguments):
            other.submit(compute, *arguments).result()
            return compute(*arguments)

        monkeypatch.setattr(Transformer, "decoder_output", compute_twice)
        attention = model.attention("abc", "de")
    for kind in ("encoder", "decoder", "cross"):
        np.testing.assert_array_equal(getattr(attention, kind), getattr(expected, kind))


def test_encoder_output_and_logits(model):
    """By the model's own layers, for the greedy translation."""
    attention = model.attention("abc de f")
    logits, best = model.logits("abc de f"), model.vocab.tgt.pieces
    assert best(logits.argmax(axis=1).tolist()) == attention.predicted_pieces
    assert logits.shape == (len(attention.predicted_pieces), model.vocab.tgt.size)
    memory = model.encoder_output("abc de f")
    assert memory.shape == (len(attention.src_pieces), 64)
    # The encoder's final layer norm gives every vector the mean 0.
    np.testing.assert_allclose(memory.mean(axis=1), 0.0, atol=1e-5)
    assert all(array.dtype == np.float32 for array in (logits, memory))


def test_a_caller_with_autocast_or_a_default_device(model):
    """Gets the same; the device `meta` stands for CUDA. Sabotage: suspend no autocast."""

    def compute() -> list:
        found = model.n_best(["abc"], n=2), model.sample(["abc"])
        return [*found, model.score(["abc"], ["de"]), model.logits("abc", "de").tolist()]

    expected = compute()
    for context in (torch.autocast("cpu", torch.bfloat16), torch.device("meta")):
        with context:
            assert compute() == expected


def test_a_model_in_training_mode(tmp_path):
    """As in a notebook that trains it: nothing is dropped meanwhile. Sabotage: keep the mode."""
    save_model(tmp_path / "step", small_config(model__dropout=0.5))
    model = transformer_mt.load(tmp_path / "step")

    def compute() -> list:
        memory, logits = model.encoder_output("abc"), model.logits("abc", "abc")
        arrays = memory, logits, model.attention("abc", "abc").cross[0]
        return [*(x.tolist() for x in arrays), model.score(["a"], ["b"]), model.translate(["abc"])]

    expected = compute()
    model.model.train()
    assert compute() == expected and model.model.training


def test_a_figure_of_attention_is_shown_inline(model):
    """A notebook asks the figure for a PNG."""
    attention = model.attention("abc de")
    figure = transformer_mt.plot_attention(attention, "encoder", heads=True)
    assert figure._repr_png_().startswith(b"\x89PNG") and len(figure.axes) == 5
    assert "\nabc de" in figure.get_suptitle()


def test_lines_of_any_kind(model):
    """A generator, a deque; lone surrogates, which no text has, are U+FFFD."""
    lines = ["abc", "de \ud800 f", "\udc00"]
    expected = model.translate(["abc", "de \ufffd f", "\ufffd"])
    assert model.translate(iter(lines)) == model.translate(deque(lines)) == expected
    assert expected[2] == "\ufffd"
    shown, same = (model.attention(f"ab {each}", each) for each in ("\ud800", "\ufffd"))
    assert (shown.src_pieces, shown.tgt_pieces) == (same.src_pieces, same.tgt_pieces)


def test_metrics_as_records(copy_run, tmp_path):
    """Whole numbers stay whole, null is NaN."""
    expected = [{**line, "minutes": line["seconds"] / 60} for line in records(copy_run)]
    metrics = transformer_mt.read_metrics(str(copy_run))
    assert metrics == expected and {record["kind"] for record in metrics} == {"train", "valid"}
    assert isinstance(metrics[0]["step"], int)
    line = '{"kind": "train", "step": 1, "seconds": 6.0, "loss": %s}\n'
    (tmp_path / "metrics.jsonl").write_text(line % "null")
    assert math.isnan(transformer_mt.read_metrics(tmp_path)[0]["loss"])
