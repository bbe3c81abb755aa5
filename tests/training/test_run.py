"""A run's beginning and its resumption: what is taken from where, and what is refused."""

import os
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy
import pytest
import sacrebleu
import sentencepiece
import torch
from conftest import assert_one_error, equal, records, refuses, tiny_config, weights, write_config

from transformer_mt.checkpoints import run_description as stored
from transformer_mt.checkpoints.run_description import read_description, write_description
from transformer_mt.checkpoints.run_directory import find_checkpoint, list_checkpoints, load_newest
from transformer_mt.config.keys import Config
from transformer_mt.config.loading import load_config
from transformer_mt.config.splits import SplitFiles
from transformer_mt.errors import CheckpointError, DataError, DeviceError
from transformer_mt.system.console import logger
from transformer_mt.system.files import locked
from transformer_mt.text.corpus import load_split
from transformer_mt.training import environment as environment_module
from transformer_mt.training import run as run_module
from transformer_mt.training.dry_run import dry_run
from transformer_mt.training.fit import StepFitter
from transformer_mt.training.run import build_trainer, require_writable, train
from transformer_mt.training.trainer import Trainer
from transformer_mt.version import describe_software

pytestmark = pytest.mark.usefixtures("untranslated")


def small_config(corpus_dir, **changes):
    return tiny_config(corpus_dir, **{"valid__every": 1000, "train__max_steps": 8, **changes})


@pytest.fixture(scope="module")
def first(corpus_dir, tmp_path_factory) -> Path:
    """Gives a run of eight steps with checkpoints at 2, 4, 6 and 8."""
    run_dir = tmp_path_factory.mktemp("runs") / "first"
    train(small_config(corpus_dir, train__keep_last=4, train__save_every=2), run_dir)
    return run_dir


@pytest.fixture
def run_dir(first, tmp_path) -> Path:
    """Gives a copy of it, made by a program that leaves out hidden files."""
    return shutil.copytree(first, tmp_path / "run", ignore=shutil.ignore_patterns(".*"))


def test_a_run_of_an_earlier_version_has_no_configuration(tmp_path, call):
    """Nor does an average, which has a run.json, too. Sabotage: read the missing config.toml."""
    (tmp_path / "run.json").write_text("{}")
    message = f"{tmp_path}: has no config.toml; name its configuration file"
    assert_one_error(call("train", tmp_path), message)
    (tmp_path / "manifest.json").write_text("{}")
    message = f"{tmp_path}: is a checkpoint; name its run, or a configuration with train.init_from"
    assert_one_error(call("train", tmp_path), message)


def test_what_a_run_records_of_itself(corpus_dir, first, prepared):
    config = small_config(corpus_dir, train__keep_last=4, train__save_every=2)
    described, newest = read_description(first), load_newest(first)
    cut = described.environment["cut of a step"]
    src, tgt = (round(float(side.mean()), 2) for side in prepared.pairs.lengths)
    expected = dict(config=config, corpus=prepared.report, corpus_digest=prepared.digest)
    expected["lengths"] = stored.SentenceLengths({"src": src, "tgt": tgt})
    digest = load_split(config.data, config.data.valid).digest()
    expected |= dict(validation=stored.ValidationText(12, digest), init_from=None, complete=True)
    expected["parameters"] = sum(each.numel() for each in newest.build_model().parameters())
    expected["vocabulary"] = stored.VocabularySizes(292, 292, "bpe")
    noted = {"environment": {**newest.state.environment, "cut of a step": cut}}
    noted["environment"]["last change on resume"] = "none"
    noted["software"] = describe_software()
    assert described == stored.RunDescription(**expected, **noted)
    assert f" {newest.progress.micro_batch_tokens:,} positions; " in cut
    log = (first / "train.log").read_text()
    noted = dict(re.findall(r" (command|software|numeric environment): (.*)\n", log))
    assert noted.pop("numeric environment").startswith("{'program version': ")
    assert f" {prepared.summary}; cpu, fp32\n" in log
    assert noted == {"command": " ".join(sys.argv), "software": describe_software()}
    libraries = torch, numpy, sentencepiece, sacrebleu
    versions = {f"{each.__name__} version": each.__version__ for each in libraries}
    assert versions.items() <= described.environment.items()


def test_a_run_is_trained_again_from_its_directory(corpus_dir, tmp_path, monkeypatch, call):
    """Bit by bit. Sabotage: write defaults of keys; load the command's TOML in the comments."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(corpus_dir, "text")
    config = write_config(tmp_path, corpus_dir, data__path="text", data__prepared_dir="prepared")
    config = config.rename("tiny\udcff.toml")
    sets = "--set", "train.max_steps=3", "--set", "train.seed=7"
    assert call("train", config, *sets, "--run", "first", "-q")[::2] == (0, "")
    config.unlink()
    toml = Path("first/config.toml").read_text()
    command = f"#     transformer-mt train 'tiny?.toml' {' '.join(sets)} --run first -q\n"
    assert toml.count("#  ") == toml.count(command) == 1 and str(tmp_path) not in toml
    for line in ('path = "text"', "seed = 7  # --set", "d_model = 16", "keep_last = 5  # default"):
        assert f"\n{line}\n" in toml
    assert call("train", "first/config.toml", "--run", "again", "-q")[::2] == (0, "")
    assert equal(*(weights(Path(run, "step-00000003")) for run in ("first", "again")))
    assert call("train", "first", "--set", "train.max_steps=4", "-q")[::2] == (0, "")
    resumed = Path("first/config.toml").read_text()
    assert "max_steps = 4  # --set" in resumed and "seed = 7  # --set" in resumed
    assert resumed.count("#  ") == 2
    Path("first/run.json").unlink()
    assert call("train", "first", "--set", "train.max_steps=5", "-q")[::2] == (0, "")
    assert Path("first/step-00000005").exists() and not Path("checkpoints").exists()


def test_what_differs_from_the_run_that_is_repeated(first, corpus_dir, tmp_path, monkeypatch, call):
    """Also texts, source and the cut of a step. Sabotage: compare the environments alone."""
    cut = read_description(first).environment["cut of a step"]
    other = re.sub("[0-9,]+ pos", "77 pos", cut)
    monkeypatch.setattr(StepFitter, "find_micro_batch_tokens", lambda fitter: 77)
    monkeypatch.chdir(tmp_path)
    shutil.copytree(corpus_dir, "text")
    Path("text/validation.de").write_text("other\n" * 60)
    monkeypatch.setitem(environment_module._SOURCES, "source of model/", "other")
    place = "--set", "data.path=text", "--set", "train.seed=3", "--set", "train.max_steps=1"
    _, _, err = call("train", first, "--run", "new", *place, "-q")
    assert err == (
        f"warning: differs from {first}: the validation text, train.seed (was 1, is 3), the source"
        f" of model/ has changed, cut of a step (was {cut}, is {other})\n"
    )
    Path("mine").mkdir()  # with a file of the user's, which is kept
    own = (first / "config.toml").read_text().replace("# `", "# Mine. `")
    Path("mine/config.toml").write_text(own)
    assert call("train", "mine/config.toml", "--run", "mine", *place, "-q").code == 0
    assert Path("mine/config.toml").read_text() == own


def test_what_has_changed_while_the_run_that_is_repeated_was_trained(run_dir, tmp_path, call):
    """Even if it has changed back since. Sabotage: record the environment of the last start."""
    for steps, size in ((9, 300), (10, "auto")):
        changes = f"train.max_steps={steps}", f"train.micro_batch_tokens={size}"
        assert call("train", run_dir, *(f"--set={change}" for change in changes)).code == 0
    again = "train", run_dir, "--run", tmp_path / "new", "--set", "train.max_steps=1", "-q"
    change = "last change on resume (was at step 9, is none)"
    assert call(*again).err == f"warning: differs from {run_dir}: {change}\n"


def test_what_has_not_reached_its_end_is_not_complete(corpus_dir, tmp_path, monkeypatch):
    """In run.json, for `compare`. Sabotage: record the end when training begins."""
    ends, run = [], tmp_path / "run"

    def step(trainer: Trainer, pairs: object) -> None:
        ends.append(read_description(run).complete)
        raise KeyboardInterrupt

    train(small_config(corpus_dir, train__max_steps=0), run)
    assert read_description(run).complete
    monkeypatch.setattr(Trainer, "take_step", step)
    with pytest.raises(KeyboardInterrupt):
        train(small_config(corpus_dir, train__max_steps=2), run)
    assert ends == [False] and not read_description(run).complete


def test_a_finished_run_keeps_what_it_was_trained_with(corpus_dir, run_dir, tmp_path, monkeypatch):
    """Until it is trained further. Sabotage: describe it as if it were trained again."""
    (run_dir / "source.diff").write_text("kept")
    files = [run_dir / name for name in ("run.json", "config.toml", "source.diff")]
    before = [path.read_text() for path in files]
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    monkeypatch.setattr(sys, "argv", ["/transformer_mt/__main__.py", "train", "x"])
    step = load_newest(run_dir).step
    train(small_config(corpus_dir, train__max_steps=1), run_dir)
    assert [path.read_text() for path in files] == before
    write_description(run_dir, replace(read_description(run_dir), complete=False))  # a kill
    train(small_config(corpus_dir, train__max_steps=1), run_dir)
    assert [path.read_text() for path in files] == before
    monkeypatch.setattr("transformer_mt.training.description.source_state", lambda: ("", ""))
    train(small_config(corpus_dir, train__max_steps=step + 1), run_dir)
    assert read_description(run_dir).config.train.max_steps == step + 1 and not files[2].exists()
    assert "\n#     transformer-mt train x\n" in (run_dir / "config.toml").read_text()


def test_a_run_that_another_process_has_just_started(corpus_dir, first, tmp_path, monkeypatch):
    def build(*arguments, **options):
        shutil.copytree(first, tmp_path / "run")
        return build_trainer(*arguments, **options)

    monkeypatch.setattr(run_module, "build_trainer", build)
    with pytest.raises(CheckpointError, match="/run: another process has just started this run$"):
        train(small_config(corpus_dir, train__max_steps=1), tmp_path / "run")


@pytest.mark.parametrize("command", [train, dry_run])
def test_where_a_run_cannot_be(tmp_path, command):
    """A file or a broken link in the way is named before anything is read or written."""
    (tmp_path / "file").touch(0o755)
    (tmp_path / "link").symlink_to("unmounted")
    without_text = tiny_config(tmp_path / "nowhere")
    for name in ("file", "link", "file/deep/run", "link/deep/run"):
        with pytest.raises(CheckpointError, match=f"{name[:4]}: not a directory; name another"):
            command(without_text, tmp_path / name)
    with pytest.raises(DataError):
        command(without_text, tmp_path / "run")
    assert not (tmp_path / "run").exists() and not logger.handlers


def test_names_that_a_run_cannot_have(corpus_dir, run_dir, tmp_path):
    """In a checkpoint, which is deleted one day; under a name that safetensors cannot open."""
    checkpoint, *_ = list_checkpoints(run_dir)
    (tmp_path / "link").symlink_to(checkpoint)
    require_writable(checkpoint / ".." / ".." / "other")
    for name in ("manifest.json", "state.json"):  # of other programs
        (folder := tmp_path / name[:5]).mkdir()
        (folder / name).touch()
        require_writable(folder / "run")
    for place in (checkpoint, checkpoint / "deep" / "run", tmp_path / "link"):
        with pytest.raises(CheckpointError, match=f"^{checkpoint}: is a checkpoint; name another"):
            train(small_config(corpus_dir), place)
    with pytest.raises(CheckpointError, match="run\udcff: not UTF-8; name another --run"):
        train(small_config(corpus_dir), tmp_path / "run\udcff")


@pytest.mark.parametrize("name", ["run.json", "metrics.jsonl", "source.diff"])
def test_files_of_another_program_are_not_replaced(corpus_dir, tmp_path, name):
    """A run that has lost its checkpoints has its lock file. Sabotage: do not look for them."""
    (tmp_path / name).write_text("other")
    with pytest.raises(CheckpointError, match=f"^{tmp_path}/{name}: would be replaced, and there"):
        train(small_config(corpus_dir), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "other"


@pytest.mark.parametrize("by_files", [False, True])
def test_moved_text_is_the_same_and_changed_text_is_refused(corpus_dir, tmp_path, by_files):
    """Digests decide, not paths. A finished run records where its text is now, too.

    Sabotage: compare the whole paths of files; leave the description of a finished run as it is.
    """

    def config(folder: Path, steps: int) -> Config:
        changes = {"data__path": str(folder), "train__max_steps": steps}
        if by_files:
            train_files, valid_files = (
                SplitFiles(src=f"{folder}/{split}.de", tgt=f"{folder}/{split}.en")
                for split in ("train", "validation")
            )
            changes |= {"data__train": [train_files], "data__valid": valid_files}
        return small_config(corpus_dir, **changes)

    train(config(corpus_dir, 1), tmp_path / "run")
    moved = shutil.copytree(corpus_dir, tmp_path / "moved")
    assert train(config(moved, 2), tmp_path / "run").step == 2
    again = shutil.copytree(corpus_dir, tmp_path / "again")
    train(config(again, 2), tmp_path / "run")  # nothing is left to train
    assert find_checkpoint(tmp_path / "run").config.data == config(again, 2).data
    assert load_config(tmp_path / "run/config.toml").data == config(again, 2).data
    for split, name in (("validation", "validation"), ("train", "training")):
        text = (moved / f"{split}.en").read_text()
        (moved / f"{split}.en").write_text("x" + text)
        with pytest.raises(CheckpointError, match=f"run: the {name} text has changed"):
            train(config(moved, 3), tmp_path / "run")
        (moved / f"{split}.en").write_text(text)


def test_what_stands_in_the_run_directory(corpus_dir, run_dir):
    """Another trainer, a checkpoint that was being replaced, checkpoints without moments alone."""
    with locked(run_dir / ".lock", pytest.fail):
        message = f"process {os.getpid()} is training this run; stop it"
        refuses(CheckpointError, message, train, small_config(corpus_dir), run_dir)
    newest, *_ = list_checkpoints(run_dir)
    newest.rename(newest.with_name(f".{newest.name}.replaced"))
    train(small_config(corpus_dir), run_dir)
    assert "nothing to do" in (run_dir / "train.log").read_text()
    *newer, oldest = list_checkpoints(run_dir)
    assert newer[0] == newest
    for path in newer:
        shutil.rmtree(path)
    message = f"{oldest.name}: has no training.safetensors, so training cannot resume"
    refuses(CheckpointError, message, train, small_config(corpus_dir), run_dir)


def test_what_is_said_when_a_run_is_resumed(corpus_dir, run_dir, caplog):
    """Where it stands, that new keys are not used, that run.json cannot be written."""
    (run_dir / "run.json").unlink()
    (run_dir / "run.json").mkdir()
    keys = {"vocab__path": "other.model", "train__init_from": "elsewhere"}
    with caplog.at_level("INFO", "transformer_mt"):
        train(small_config(corpus_dir, **keys), run_dir)
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warnings == [
        f"{run_dir}/run.json: not a regular file; resume the run, which writes it again",
        "vocab.path = other.model is not used: the run is resumed",
        "train.init_from = elsewhere is not used: the run is resumed",
        f"{run_dir}/run.json: cannot be written: Is a directory",
    ]
    assert "resuming at step 8, epoch 0" in caplog.messages
    for path in list_checkpoints(run_dir):
        shutil.rmtree(path)
    old = next((run_dir / "evaluations").iterdir())
    shutil.copy(old, old.with_name("test.json"))
    (notes := old.with_name("notes.json")).touch()
    train(small_config(corpus_dir, train__max_steps=1), run_dir)
    assert {*old.parent.iterdir()} == {old, notes}  # of the new weights, and the user's
    message = f"{run_dir}: has no checkpoint, so training starts at step 1 again"
    assert caplog.messages.count(message) == 1
    assert [record["step"] for record in records(run_dir)] == [1, 1]


def test_what_ends_bit_equality_is_said_once(corpus_dir, run_dir, caplog, monkeypatch):
    """Also in train.log. Sabotage: record the instructions of the CPU, not its variables."""
    train(small_config(corpus_dir, train__max_steps=9), run_dir)
    assert "bit-equal" not in caplog.text
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    before = load_newest(run_dir).state.environment["environment variables"]
    same = {"train__device": "cpu", "train__compile": False}  # as before on a machine without a GPU
    smaller = small_config(corpus_dir, train__max_steps=10, train__micro_batch_tokens=300, **same)
    assert train(smaller, run_dir).step == 10
    [message] = [text for text in caplog.messages if "bit-equal" in text]
    assert (run_dir / "train.log").read_text().count(f" warning: {message}\n") == 1
    environment = load_newest(run_dir).state.environment
    assert "MKL_CBWR=COMPATIBLE" in (now := environment["environment variables"])
    changed = f"train.micro_batch_tokens (was auto, is 300), environment variables (was {before}"
    end = f"one: {changed}, is {now}), threads (was {threads}, is {threads + 1})"
    assert message.endswith(end) and environment["threads"] == str(threads + 1)
    assert environment["torch version"] == torch.__version__
    caplog.clear()
    monkeypatch.setitem(environment_module._SOURCES, "source of model/", "other")
    monkeypatch.setitem(environment_module._SOURCES, "source of new/", "not recorded")
    for steps in (11, 12):
        longer = {"train__max_steps": steps, "train__micro_batch_tokens": 300}
        train(small_config(corpus_dir, **longer), run_dir)
    [message] = [text for text in caplog.messages if "bit-equal" in text]
    assert message.endswith(" one: the source of model/ has changed")


def test_held_out_text_that_is_trained_on(corpus_dir, tmp_path, caplog):
    """Is reported; a test text may also come later. Sabotage: read the validation text twice."""
    for held_out in ("valid", "test"):
        config = small_config(corpus_dir, **{f"data__{held_out}": "train[:40]"})
        build_trainer(config, tmp_path)
        [message] = [text for text in caplog.messages if "too high" in text]
        assert message.startswith(f"data.{held_out} = train[:40]: 40 of 40 pairs are also training")
        caplog.clear()
    build_trainer(small_config(corpus_dir, data__test="later"), tmp_path)
    assert "too high" not in caplog.text


def test_a_precision_that_the_machine_cannot_keep(corpus_dir, tmp_path, monkeypatch):
    """Asked for, or kept from the hardware a run began on."""
    has = {"bf16": True}
    for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.setattr(torch.cpu, name, lambda: has["bf16"])
    changes = {"train__precision": "auto", "data__valid": "validation[:3]"}
    config = small_config(corpus_dir, train__max_steps=1, **changes)
    assert train(config, tmp_path / "run").precision == "bf16"
    has["bf16"] = False
    longer = small_config(corpus_dir, train__max_steps=2, **changes)
    refuses(DeviceError, "bf16: .* resume it where it was trained", train, longer, tmp_path / "run")
    wanted = small_config(corpus_dir, train__precision="bf16")
    with pytest.raises(DeviceError, match="train.precision = bf16: this cpu device does not"):
        train(wanted, tmp_path / "other")
    assert build_trainer(longer, tmp_path / "other").progress.precision == "fp32"
