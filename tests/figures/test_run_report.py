"""The report of a run, and the evaluations that it shows."""

import json
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from conftest import tiny_config
from drawn import overlapping
from test_cli_errors import assert_one_error, call

from transformer_mt.checkpoints.evaluations import read_evaluations, run_folders
from transformer_mt.checkpoints.run_directory import find_checkpoint, list_checkpoints, load_newest
from transformer_mt.cli.program import main
from transformer_mt.config.keys import SplitFiles
from transformer_mt.errors import CheckpointError
from transformer_mt.evaluation.scoring import sentence_chrf
from transformer_mt.figures.report import build_report, read_run
from transformer_mt.figures.training import PANELS, lengths_figure, panel_figure
from transformer_mt.text.prepared import prepare
from transformer_mt.training.run import train


class Page(HTMLParser):
    """Parses a page: its text without styles, its tags, and whether they are balanced."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.text, self.tags, self.ids, self._open = "", [], [], []
        self.feed(html)
        assert not self._open
        self.text = " ".join(self.text.split()) + " "

    def handle_starttag(self, tag, attrs):
        self.handle_startendtag(tag, attrs)
        if tag not in {"meta", "br"}:
            self._open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.ids += [value for name, value in attrs if name == "id"]

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        if not {"style", "svg"} & set(self._open):
            self.text += " ".join(data.split()) + " "


def report_text(run: Path) -> str:
    return Page(build_report(read_run(run))).text


@pytest.fixture(scope="module")
def run(corpus_dir, tmp_path_factory) -> Path:
    """Gives a run of twelve steps, validated, and evaluated on four lines that look like HTML."""
    run_dir = tmp_path_factory.mktemp("report") / "run<b>"
    config = tiny_config(
        corpus_dir,
        train__max_steps=12,
        valid__every=6,
        model__d_model=16,
        model__d_ff=32,
        train__ema_decay=0.5,
        data__train="train[:600]",
        data__drop_identical=False,
        data__max_length=10,
    )
    train(config, run_dir)
    folder = tmp_path_factory.mktemp("text")
    (folder / "src").write_text("<script>alert(1)</script>\na & b\n\nab cd ef\n")
    (folder / "ref").write_text("x\ny\nz\nab cd ef\n")
    with pytest.MonkeyPatch.context() as patch:
        text = ["--src", str(folder / "src"), "--ref", str(folder / "ref"), "--quiet"]
        patch.setattr("sys.argv", ["transformer-mt", "evaluate", str(run_dir), *text])
        main()
    return run_dir


@pytest.fixture(scope="module")
def html(run, tmp_path_factory) -> str:
    """Gives the report of that run, written by the command."""
    path = tmp_path_factory.mktemp("page") / "report.html"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["transformer-mt", "report", str(run), "-o", str(path), "-q"])
        main()
    return path.read_text()


def test_the_page_is_whole_and_needs_no_network(html, run):
    """Balanced tags, no id twice, no address, no script, text escaped, no folder of this machine.

    Sabotage: autoescape=False; the same ids in all figures; a font from the network; show
    data.path as it is.
    """
    page = Page(html)
    assert len(set(page.ids)) == len(page.ids) > 10
    assert not {"script", "link", "img", "iframe"} & {tag for tag, _ in page.tags}
    links = [value for _, attrs in page.tags for key, value in attrs.items() if "href" in key]
    own = [value for value in links if value.startswith("#")]
    assert own and {value.removeprefix("#") for value in own} <= set(page.ids)
    assert all(value.startswith(("#", "data:image/png")) for value in links)
    assert "@import" not in html and "url(http" not in html and " src=" not in html
    assert "<script>alert(1)</script>" in page.text and "run<b>" in page.text
    assert not re.search("#1a1a1a|#d9d9d9|fill: #fff", html)  # all colours are the page's
    assert html.count("<svg ") == len(PANELS) + 1 + html.count('aria-label="Attention of')
    assert str(run.parents[1]) not in page.text


def test_what_it_shows_is_what_the_run_recorded(run, html):
    """Counts, every score with its signature, settings, digests, translations.

    Sabotage: show one score; leave the dropped pairs out.
    """
    text = Page(html).text
    described = json.loads((run / "run.json").read_text())
    corpus = described["corpus"]
    assert corpus["dropped"]
    for reason, count in corpus["dropped"].items():
        assert f"dropped: {reason} {count:,} " in text
    assert f"pairs read {corpus['pairs']:,} " in text and corpus["digest"] in text
    assert f"training pairs {corpus['kept']:,} " in text
    assert f"vocabulary, pieces {described['vocabulary']['src']:,} pieces per word " in text
    validation, evaluation = read_evaluations(run_folders(run))
    assert validation.test_set == "validation"
    for record in (validation, evaluation):
        assert [score.name for score in record.scores] == ["bleu", "chrf"]
        for score in record.scores:
            assert f"{score.value:.2f} {score.signature} " in text
    words = re.search(r"4 sentences, .*, ([\d,.]+) source words/s", text)[1]
    assert float(words.replace(",", "")) == pytest.approx(7 / evaluation.seconds, abs=1)
    checkpoint = find_checkpoint(run)
    assert f"best validation BLEU {checkpoint.progress.best_bleu:.2f} " in text
    assert evaluation.digest == checkpoint.digest
    assert "train.ema_decay 0.5 " in text and "torch version" in text
    assert f"Cross-attention of {checkpoint.path.name}" in text
    changed = text[text.index(" Configuration ") : text.index(" Keys that have their defaults ")]
    assert "model.d_model 16 " in changed and "valid.beam_size" not in changed


def test_the_best_and_the_worst_translations(run, tmp_path):
    """Ranked by chrF2, each group drawn once. Sabotage: swap best and worst."""
    run = shutil.copytree(run, tmp_path / "run")
    record = read_evaluations(run_folders(run))[-1]
    path = run / "evaluations" / record.file_name
    hypotheses = ["x", "no", "", "ab cd"]
    path.write_text(json.dumps({**json.loads(path.read_text()), "hypotheses": hypotheses}))
    scores = sentence_chrf(hypotheses, record.references)
    order = [0, 3, 1, 2]  # of two that are equally bad, the longer source is first
    assert scores[0] > scores[3] > scores[1] == scores[2]
    text = report_text(run)
    groups = {"Best": order[:3], "Median": order[:3], "Worst": order[:0:-1]}
    for name, end in (("Best", "Median"), ("Median", "Worst"), ("Worst", "Attention")):
        section = text[text.index(f" {name} line ") : text.index(f" {end} ")]
        shown = re.findall(r"line (\d) chrF2 ([\d.]+) ", section)
        assert shown == [(str(i + 1), f"{scores[i]:.1f}") for i in groups[name]]
    assert " Best: line 1 " in text and "Worst: line 3: empty, or too long to draw." in text


def test_lengths_are_those_of_the_training_text(run):
    """Counted by hand from the prepared corpus, and drawn as they are. Sabotage: a bin too wide."""
    pairs = prepare(find_checkpoint(run).config).pairs
    lengths = json.loads((run / "run.json").read_text())["lengths"]
    figure = lengths_figure(lengths, ("de", "en"))
    [axes] = figure.axes
    for side, patch in zip((pairs.src, pairs.tgt), axes.patches, strict=True):
        counts, edges, _ = patch.get_data()
        by_hand = [0] * len(counts)
        for i in range(len(pairs)):
            length = len(side[i]) + 1
            by_hand[next(bin_ for bin_, end in enumerate(edges[1:]) if length < end)] += 1
        assert list(counts) == by_hand and sum(by_hand) == len(pairs)
    assert axes.get_xlabel() == "pieces, end of sentence included" and axes.get_xlim()[0] == 0
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["de", "en"]
    assert not overlapping(figure)
    for panel in PANELS:
        assert not overlapping(panel_figure(panel, read_run(run).metrics))


def test_a_run_may_lack_parts(run, tmp_path):
    """Without a checkpoint, without metrics, without run.json, without validation.

    Sabotage: read any of them without asking; take the steps from the best checkpoint.
    """
    young = tmp_path / "young"
    young.mkdir()
    shutil.copy(run / "run.json", young)
    text = report_text(young)
    assert "no step logged yet" in build_report(read_run(young))
    assert "None are recorded with a signature" in text and "pairs read" in text
    assert "There is no translation to draw it of." in text
    old = shutil.copytree(run, tmp_path / "old")
    shutil.rmtree(old / "evaluations")
    (old / "run.json").unlink()
    text = report_text(old)
    assert "Counts are not recorded" in text and "None are recorded: training has not" in text
    assert "The last validation BLEU of training is" in text
    (old / "metrics.jsonl").unlink()
    for path in list_checkpoints(old)[1:]:
        shutil.rmtree(path)
    assert load_newest(old).progress.step == 12 and "steps 12 " in report_text(old)


def test_a_diverged_run(run, tmp_path):
    """Sabotage: format the last loss."""
    diverged = tmp_path / "run"
    diverged.mkdir()
    shutil.copy(run / "run.json", diverged)
    names = {"loss", "mfu", "nll", "perplexity", "grad_norm"}
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    lines = [{k: None if k in names else v for k, v in record.items()} for record in records]
    metrics = "".join(json.dumps({**line, "skipped": 7}) + "\n" for line in lines)
    (diverged / "metrics.jsonl").write_text(metrics)
    text = report_text(diverged)
    assert "the last logged loss is not finite" in text and "steps skipped, not finite 7 " in text


def test_no_folder_of_this_machine_is_shown(run):
    """Of a configuration with files. Sabotage: show values as they are."""
    read = read_run(run)
    files = SplitFiles(src='/home/me/a"b/c.de', tgt="/srv/c.en")
    data = read.config.data.model_copy(update={"train": ["one", files]})
    config = read.config.model_copy(update={"data": data})
    page = Page(build_report(replace(read, config=config, evaluations=[])))
    assert 'data.train ["one", { src = "c.de", tgt = "c.en" }]' in page.text


def test_a_newer_evaluation_replaces_an_older_one(run, tmp_path, monkeypatch, capsys):
    """One entry per test set, search and checkpoint; a checkpoint itself is not changed.

    Sabotage: name the file by time, or by test set alone.
    """
    copy = shutil.copytree(run, tmp_path / "run")
    text = ["--src", tmp_path / "src", "--ref", tmp_path / "src", "--quiet"]
    before = len(list((copy / "evaluations").iterdir()))
    for number, options in enumerate([[], [], ["--beam-size", "2"], ["--raw"]]):
        (tmp_path / "src").write_text(f"ab cd {number}\n")
        assert call(monkeypatch, capsys, "evaluate", copy, *text, *options)[0] == 0
    records = read_evaluations(run_folders(copy))
    assert len(records) == before + 3
    own = [record.sources for record in records[-3:]]
    assert own == [["ab cd 1"], ["ab cd 2"], ["ab cd 3"]] and records[-1].test_set == "src"
    checkpoints = list_checkpoints(copy)
    for path in checkpoints:
        assert call(monkeypatch, capsys, "evaluate", path, *text)[0] == 0
    assert len(read_evaluations(run_folders(copy))) == before + 2 + len(checkpoints)
    for path, unchanged in zip(checkpoints, list_checkpoints(run), strict=True):
        assert {item.name for item in path.iterdir()} == {item.name for item in unchanged.iterdir()}


def test_an_evaluation_that_cannot_be_recorded_is_not_lost(run, tmp_path, monkeypatch, capsys):
    """A warning, the scores, exit code 0; beside a checkpoint out of its run nothing is written.

    Sabotage: raise the error; record in whatever folder is above.
    """
    copy = shutil.copytree(run, tmp_path / "run")
    shutil.rmtree(copy / "evaluations")
    (copy / "evaluations").write_text("in the way")
    (tmp_path / "src").write_text("ab cd\n")
    text = ["--src", tmp_path / "src", "--ref", tmp_path / "src", "--quiet"]
    code, out, err = call(monkeypatch, capsys, "evaluate", copy, *text)
    assert code == 0 and out.startswith("BLEU|")
    assert re.fullmatch(r"warning: .*/evaluations: the scores are not recorded: .*\n", err)
    path = list_checkpoints(copy)[0].rename(tmp_path / "step-00000012")
    assert call(monkeypatch, capsys, "evaluate", path, *text)[0] == 0
    assert {item.name for item in tmp_path.iterdir()} == {path.name, "run", "src"}


def test_a_damaged_evaluation_is_left_out(run, tmp_path, caplog):
    """With a warning. Sabotage: trust what is there."""
    folder = shutil.copytree(run / "evaluations", tmp_path / "evaluations")
    (folder / "other.json").write_text('{"test_set": 1}')
    assert len(read_evaluations([folder])) == 2
    assert "other.json: damaged (not an evaluation); left out" in caplog.text


def test_what_is_no_run(run, tmp_path, monkeypatch, capsys):
    """One line, which says what to name. Sabotage: no check for a checkpoint."""
    for path, message in {
        tmp_path / "none": "no such run",
        tmp_path: "has neither run.json nor a checkpoint",
        list_checkpoints(run)[0]: "is a checkpoint; name the run directory",
    }.items():
        result = call(monkeypatch, capsys, "report", path, "-o", tmp_path / "x.html")
        assert_one_error(*result, message)
    (tmp_path / "run.json").write_text("[]")
    with pytest.raises(CheckpointError, match="run.json: damaged"):
        read_run(tmp_path)
