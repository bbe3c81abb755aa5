"""The report of a run."""

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
from transformer_mt.figures.lengths import lengths_figure
from transformer_mt.figures.page import PAGE_STYLE
from transformer_mt.figures.recorded_run import read_run
from transformer_mt.figures.report import build_report
from transformer_mt.figures.training import PANELS, panel_figure
from transformer_mt.text.prepared import prepare
from transformer_mt.training.run import train

VOID = {"meta", "br", "link", "img"}


class Page(HTMLParser):
    """Parses a page: its text without styles, its tags, and whether they are balanced."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.text, self.tags, self.ids, self._open = "", [], [], []
        self.feed(html)
        assert not self._open
        self.text = " ".join(self.text.split()) + " "

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.ids += [value for name, value in attrs if name == "id"]
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        if not {"style", "svg"} & set(self._open):
            self.text += " ".join(data.split()) + " "


@pytest.fixture(scope="module")
def run(corpus_dir, tmp_path_factory) -> Path:
    """Gives a run of twelve steps, with a moving average, validated and evaluated."""
    run_dir = tmp_path_factory.mktemp("report") / "run<b>"
    sizes = {"model__d_model": 16, "model__d_ff": 32, "data__train": "train[:600]"}
    config = tiny_config(
        corpus_dir,
        train__max_steps=12,
        valid__every=6,
        data__drop_identical=False,
        train__ema_decay=0.5,
        data__max_length=10,
        **sizes,
    )
    train(config, run_dir)
    return run_dir


@pytest.fixture(scope="module")
def evaluated(run, tmp_path_factory) -> Path:
    """Gives the same run, evaluated on four lines that look like HTML."""
    folder = tmp_path_factory.mktemp("text")
    (folder / "src").write_text("<script>alert(1)</script>\na & b\n\nab cd ef\n")
    (folder / "ref").write_text("x\ny\nz\nab cd ef\n")
    with pytest.MonkeyPatch.context() as patch:
        arguments = ["evaluate", run, "--src", folder / "src", "--ref", folder / "ref", "--quiet"]
        patch.setattr("sys.argv", ["transformer-mt", *map(str, arguments)])
        main()
    return run


@pytest.fixture(scope="module")
def html(evaluated, tmp_path_factory) -> str:
    """Gives the report of that run, written by the command."""
    path = tmp_path_factory.mktemp("page") / "report.html"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "sys.argv", ["transformer-mt", "report", str(evaluated), "-o", str(path), "-q"]
        )
        main()
    return path.read_text()


def test_the_page_is_whole_and_needs_no_network(html):
    """Balanced tags, no id twice, no address, no script, text escaped.

    Sabotage: autoescape=False; the same ids in all figures; a font from the network.
    """
    page = Page(html)
    assert len(set(page.ids)) == len(page.ids) > 10
    assert not {"script", "link", "img", "iframe"} & {tag for tag, _ in page.tags}
    addresses = [
        value
        for _, attrs in page.tags
        for key, value in attrs.items()
        if key in ("src", "href", "xlink:href") and not value.startswith(("#f", "data:image/png"))
    ]
    assert not addresses and "@import" not in html and "url(http" not in html
    assert "<script>alert(1)</script>" in page.text and "run<b>" in page.text
    assert "#010101" not in html and "#020202" not in html  # all colours are the page's


def test_what_it_shows_is_what_the_run_recorded(evaluated, html):
    """Counts, every score with its signature, settings, digests, translations.

    Sabotage: show one score; leave the dropped pairs out.
    """
    text = Page(html).text
    corpus = json.loads((evaluated / "run.json").read_text())["corpus"]
    assert corpus["dropped"]
    for reason, count in corpus["dropped"].items():
        assert f"dropped: {reason} {count:,} " in text
    assert f"pairs read {corpus['pairs']:,} " in text and corpus["digest"] in text
    records = read_evaluations(run_folders(evaluated))
    assert [record.test_set for record in records][0] == "validation" and len(records) == 2
    for record in records:
        assert [score.name for score in record.scores] == ["bleu", "chrf"]
        for score in record.scores:
            assert f"{score.value:.2f} {score.signature} " in text
    checkpoint = find_checkpoint(evaluated)
    assert f"best validation BLEU {checkpoint.progress.best_bleu:.2f} " in text
    assert records[-1].digest == checkpoint.digest
    assert "train.ema_decay 0.5 " in text and "torch version" in text
    assert f"Cross-attention of {checkpoint.path.name}" in text


def test_the_best_and_the_worst_translations(evaluated, tmp_path):
    """Ranked by chrF2, each group drawn once. Sabotage: swap best and worst; draw no lengths."""
    run = shutil.copytree(evaluated, tmp_path / "run")
    record = read_evaluations(run_folders(run))[-1]
    path = run / "evaluations" / record.file_name
    hypotheses = ["x", "no", "", "ab cd"]
    path.write_text(json.dumps({**json.loads(path.read_text()), "hypotheses": hypotheses}))
    scores = sentence_chrf(hypotheses, record.references)
    order = [0, 3, 1, 2]  # of two that are equally bad, the longer source is first
    assert scores[0] > scores[3] > scores[1] == scores[2]
    html = build_report(read_run(run))
    text = Page(html).text
    groups = {"Best": order[:3], "Median": order[:3], "Worst": order[:0:-1]}
    for name, end in (("Best", "Median"), ("Median", "Worst"), ("Worst", "Attention")):
        section = text[text.index(f" {name} line ") : text.index(f" {end} ")]
        shown = re.findall(r"line (\d) chrF2 ([\d.]+) ", section)
        assert shown == [(str(i + 1), f"{scores[i]:.1f}") for i in groups[name]]
    maps = text.count(": line ") - text.count("too long to draw")
    assert maps >= 1 and html.count("<svg ") == len(PANELS) + 1 + maps


def test_lengths_are_those_of_the_training_text(run):
    """Counted by hand from the prepared corpus, and drawn as they are. Sabotage: a bin too wide."""
    config = find_checkpoint(run).config
    pairs = prepare(config).pairs
    lengths = json.loads((run / "run.json").read_text())["lengths"]
    figure = lengths_figure(lengths, ("de", "en"), PAGE_STYLE)
    for side, patch in zip((pairs.src, pairs.tgt), figure.axes[0].patches, strict=True):
        counts, edges, _ = patch.get_data()
        ends = list(edges[1:])
        by_hand = [0] * len(ends)
        for i in range(len(pairs)):
            length = len(side[i]) + 1
            by_hand[next(bin_ for bin_, end in enumerate(ends) if length < end)] += 1
        assert list(counts) == by_hand and sum(by_hand) == len(pairs)
    [axes] = figure.axes
    assert axes.get_xlabel() == "pieces, end of sentence included" and axes.get_xlim()[0] == 0
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["de", "en"]
    assert not overlapping(figure)


def test_panels_of_the_page_have_no_overlaps(run):
    """In the page's size and style. Sabotage: a smaller figure."""
    for panel in PANELS:
        assert not overlapping(panel_figure(panel, read_run(run).metrics, PAGE_STYLE))


def test_steps_are_those_of_the_newest_checkpoint(run, tmp_path):
    """Though the best one is older, and later steps were not logged. Sabotage: take the best."""
    copy = shutil.copytree(run, tmp_path / "run")
    (copy / "metrics.jsonl").write_text("")
    for path in list_checkpoints(copy)[1:]:
        shutil.rmtree(path)
    progress = load_newest(copy).progress
    assert read_run(copy).progress == progress and progress.step == 12
    assert "steps 12 " in Page(build_report(read_run(copy))).text


def test_no_folder_of_this_machine_is_shown(run, tmp_path, monkeypatch, capsys):
    """Neither of the corpus nor of files to score. Sabotage: show data.path, or --ref, as it is."""
    copy = shutil.copytree(run, tmp_path / "run")
    (tmp_path / "ref.en").write_text("ab cd\n")
    arguments = ["--src", tmp_path / "ref.en", "--ref", tmp_path / "ref.en", "--quiet"]
    assert call(monkeypatch, capsys, "evaluate", copy, *arguments)[0] == 0
    read = read_run(copy)
    files = SplitFiles(src=str(tmp_path / "a.de"), tgt=str(tmp_path / "a.en"))
    data = read.config.data.model_copy(update={"train": ["one", files]})
    config = read.config.model_copy(update={"data": data})
    page = Page(build_report(replace(read, config=config)))
    assert str(tmp_path) not in page.text
    assert 'data.train ["one", { src = "a.de", tgt = "a.en" }]' in page.text
    assert read_evaluations(run_folders(copy))[-1].test_set == "ref.en"


def test_a_newer_evaluation_replaces_an_older_one(evaluated, tmp_path, monkeypatch, capsys):
    """One entry per test set, search and checkpoint.

    Sabotage: name the file by time, or by test set alone.
    """
    run = tmp_path / "run"
    shutil.copytree(evaluated, run)
    (tmp_path / "src").write_text("ab cd\n")
    text = ["--src", tmp_path / "src", "--ref", tmp_path / "src", "--quiet"]
    before = len(list((run / "evaluations").iterdir()))
    for number, options in enumerate([[], [], ["--beam-size", "2"], ["--raw"]]):
        (tmp_path / "src").write_text(f"ab cd {number}\n")
        assert call(monkeypatch, capsys, "evaluate", run, *text, *options)[0] == 0
    records = read_evaluations(run_folders(run))
    assert len(records) == before + 3
    own = [record.sources for record in records[-3:]]
    assert own == [["ab cd 1"], ["ab cd 2"], ["ab cd 3"]]
    for path in list_checkpoints(run):
        assert call(monkeypatch, capsys, "evaluate", path, *text)[0] == 0
    newest = read_evaluations(run_folders(run))
    assert len(newest) == before + 2 + len(list_checkpoints(run))
    assert {path.name for path in list_checkpoints(run)[0].iterdir()} == {
        path.name for path in list_checkpoints(evaluated)[0].iterdir()
    }


def test_an_evaluation_that_cannot_be_recorded_is_not_lost(run, tmp_path, monkeypatch, capsys):
    """A warning, the scores, exit code 0. Sabotage: raise the error."""
    shutil.copytree(run, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "evaluations")
    (tmp_path / "run" / "evaluations").write_text("in the way")
    (tmp_path / "src").write_text("ab cd\n")
    arguments = ["--src", tmp_path / "src", "--ref", tmp_path / "src", "--quiet"]
    code, out, err = call(monkeypatch, capsys, "evaluate", tmp_path / "run", *arguments)
    assert code == 0 and out.startswith("BLEU|")
    assert re.fullmatch(r"warning: .*/evaluations: the scores are not recorded: .*\n", err)


def test_a_checkpoint_alone_leaves_nothing_beside_it(run, tmp_path, monkeypatch, capsys):
    """Copied out of its run. Sabotage: record in whatever folder is above."""
    path = shutil.copytree(list_checkpoints(run)[0], tmp_path / "step-00000012")
    (tmp_path / "src").write_text("ab cd\n")
    arguments = ["--src", tmp_path / "src", "--ref", tmp_path / "src", "--quiet"]
    assert call(monkeypatch, capsys, "evaluate", path, *arguments)[0] == 0
    assert {item.name for item in tmp_path.iterdir()} == {path.name, "src"}


def test_a_young_run_and_an_old_one(run, tmp_path):
    """Without a checkpoint, without metrics, without run.json, without validation.

    Sabotage: read any of them without asking.
    """
    young = tmp_path / "young"
    young.mkdir()
    shutil.copy(run / "run.json", young)
    text = Page(build_report(read_run(young))).text
    assert "No step has been logged yet." in text and "None are recorded with a signature" in text
    assert "There is no translation to draw it of." in text and "pairs read" in text
    old = shutil.copytree(run, tmp_path / "old")
    shutil.rmtree(old / "evaluations")
    (old / "run.json").unlink()
    text = Page(build_report(read_run(old))).text
    assert "Counts are not recorded" in text and "None are recorded: training has not" in text
    assert "The last validation BLEU of training is" in text
    (old / "metrics.jsonl").unlink()
    build_report(read_run(old))


def test_a_diverged_run(run, tmp_path):
    """Sabotage: format the last loss."""
    diverged = shutil.copytree(run, tmp_path / "diverged")
    shutil.rmtree(diverged / "evaluations")
    path = diverged / "metrics.jsonl"
    names = {"loss", "mfu", "nll", "perplexity", "grad_norm"}
    records = [json.loads(line) for line in path.read_text().splitlines()]
    lines = [{k: None if k in names else v for k, v in record.items()} for record in records]
    path.write_text("".join(json.dumps({**line, "skipped": 7}) + "\n" for line in lines))
    html = build_report(read_run(diverged))
    text = Page(html).text
    assert "the last logged loss is not finite" in text and "steps skipped, not finite 7 " in text


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


def test_a_damaged_evaluation_is_left_out(evaluated, tmp_path, caplog):
    """With a warning. Sabotage: trust what is there."""
    run = shutil.copytree(evaluated, tmp_path / "run")
    (run / "evaluations" / "other.json").write_text('{"test_set": 1}')
    assert len(read_run(run).evaluations) == 2
    assert "other.json: damaged (not an evaluation); left out" in caplog.text
