"""The commands `evaluate` and `tune`: check what was typed, call, print."""

from dataclasses import replace
from functools import partial
from itertools import product
from os.path import realpath
from pathlib import Path
from typing import Any

from transformer_mt.cli.options import (
    QUIET,
    RUNS,
    ModelGroup,
    OptionGroup,
    SearchGroup,
    argument,
    flag,
    option,
    search_option,
    with_groups,
)
from transformer_mt.errors import ConfigError
from transformer_mt.system.console import logger
from transformer_mt.system.launcher import is_main_process
from transformer_mt.system.outputs import Output, check_output, resolve_inputs
from transformer_mt.system.streams import require_input
from transformer_mt.translation.options import LoadOptions, SearchOptions, TranslateOptions

SYSTEMS = argument(
    "[RUN_OR_CHECKPOINT...]",
    "A run (its best checkpoint), a checkpoint, or what `export` wrote for CTranslate2; several are"
    " scored one by one. Not needed for --hypotheses with --ref or --test-set.",
    default=None,
)
scored_option = partial(option, group="What to score")
report_option, report_flag = (partial(f, group="What to report") for f in (option, flag))
SPLIT = scored_option(
    "NAME",
    "train, valid or test, as configured; another split of the corpus; or /FOLDER/NAME, one in"
    " that folder. Default: test.",
)


class ScoredGroup(OptionGroup):
    """What is translated and scored."""

    split: str | None = SPLIT
    test_set: str | None = scored_option("NAME")
    """sacreBLEU's name of a test set, such as wmt16, instead of a split."""
    src: Path | None = scored_option("FILE")
    """Source text, instead of a split."""
    ref: list[Path] | None = scored_option("FILE")
    """Reference translation; may be repeated for several references."""
    src_column: str | None = scored_option("NAME_OR_NUMBER")
    """Column of --src, if that is a table."""
    ref_column: str | None = scored_option("NAME_OR_NUMBER")
    """Column of each --ref, likewise."""
    hypotheses: Path | None = scored_option("FILE")
    """Score this translation instead of making one."""
    baseline: Path | None = scored_option("RUN_OR_FILE")
    """Compare with this run or translation."""
    src_lang: str | None = scored_option("NAME")
    """Language of the source, if no run is named."""
    tgt_lang: str | None = scored_option("NAME")
    """Language of the translation, likewise."""

    def check(self, runs: int, save: Path | None) -> None:
        """Refuses options that need a run, or a single one."""
        if not runs and (self.hypotheses is None or not (self.ref or self.test_set)):
            raise ConfigError("name a run, or --hypotheses with --ref or --test-set")
        if runs > 1 and (self.hypotheses or save):
            name = "--hypotheses" if self.hypotheses else "--save"
            raise ConfigError(f"{name} works with one run or --ensemble, not with several runs")

    def check_output(self, save: Path | None, overwrite: bool) -> Output | None:
        """Checks files in the main process; the others may run on machines without them."""
        if not is_main_process():
            return None
        require_input(self.hypotheses)
        inputs = resolve_inputs([self.hypotheses, self.src, *(self.ref or ()), self.baseline])
        return check_output(save, inputs, overwrite) if save else None

    def test_set_loader(self, save: Output | None) -> partial[Any]:
        """Returns `load_test_set` of what is scored, which needs the corpus of the first run."""
        from transformer_mt.text.test_sets import load_test_set

        sources: dict[str, Any] = {"split": self.split, "src": self.src, "refs": self.ref or ()}
        sources["columns"] = self.src_column, self.ref_column
        return partial(load_test_set, **sources, test_set=self.test_set, save=save)


class MetricGroup(OptionGroup):
    """The parameters of `choose_metrics`."""

    ter: bool = report_flag(None, "--ter")
    """Compute TER too."""
    chrf_plus_plus: bool = report_flag(None, "--chrf++")
    """Compute chrF++ too."""
    lowercase: bool = report_flag(None, "--lowercase")
    """Compute BLEU of lower-cased text."""
    confidence: bool = report_flag(None, "--confidence")
    """Compute sacreBLEU's 95% confidence interval; with --baseline only --json shows it."""
    tokenizer: str | None = report_option("NAME", None, "--tokenize")
    """sacreBLEU's tokenizer for BLEU, such as 13a, intl, char, zh, ja-mecab or flores200. Default:
    the run's valid.tokenize, or that of the target language."""


class ReportGroup(OptionGroup):
    """What is saved and printed."""

    save: Path | None = report_option("FILE")
    """File to save the translation to."""
    overwrite: bool = report_flag(None, "--overwrite")
    """Let --save replace text that is scored."""
    samples: int = report_option("N", default=0, min=0)
    """Sentences to show; with --baseline those that differ most."""
    json_: bool = report_flag(None, "--json")
    """Print JSON: one object per system, one per line."""

    def check(self) -> None:
        """Refuses options that have no effect."""
        if self.json_ and self.samples:
            raise ConfigError("--json prints no sentences: leave out --samples or --json")
        if self.overwrite and not self.save:
            raise ConfigError("--overwrite needs --save")


@with_groups
def evaluate(
    paths: list[Path] | None = SYSTEMS,
    *,
    scored: ScoredGroup,
    search: SearchGroup,
    model: ModelGroup,
    metrics: MetricGroup,
    report: ReportGroup,
    quiet: bool = QUIET,
) -> None:
    """Score translations of a test set with sacreBLEU.

    The test set, by default that of the first run, is translated first, unless --hypotheses names a
    translation.

    \b
    transformer-mt evaluate checkpoints/wmt16-base
    transformer-mt evaluate checkpoints/wmt16-base checkpoints/wmt16-small
    transformer-mt evaluate checkpoints/wmt16-base --test-set wmt14 --beam-size 4 --save hyp.en
    transformer-mt evaluate checkpoints/wmt16-base --baseline checkpoints/wmt16-small
    transformer-mt evaluate --hypotheses hyp.en --ref ref.en --json
    """
    runs = [paths] if paths and search.ensemble else [[path] for path in paths or ()]
    scored.check(len(runs), report.save)
    report.check()
    if (runs and not scored.hypotheses) or (scored.baseline and scored.baseline.is_dir()):
        search.warn_of_length_penalty()
    else:
        for name in (*search.given(), *model.given()):
            if name != "--ensemble":  # which makes one system of the runs that are named
                logger.warning("%s has no effect on --hypotheses", name)
    options = TranslateOptions(
        LoadOptions(model.device, model.precision, model.max_length, model.raw),
        SearchOptions(search.beam_size, search.length_penalty, batch_tokens=model.batch_tokens),
    )
    output = scored.check_output(report.save, report.overwrite)
    from transformer_mt.evaluation.evaluate import evaluate_systems, format_as_json, format_reports
    from transformer_mt.evaluation.scoring import choose_metrics

    reports = evaluate_systems(
        runs=runs,
        hypotheses=scored.hypotheses,
        baseline=scored.baseline,
        load_test_set=scored.test_set_loader(output),
        choose_metrics=partial(choose_metrics, **vars(metrics)),
        options=options,
        languages={"src_lang": scored.src_lang or "", "tgt_lang": scored.tgt_lang or ""},
        save=output,
    )
    if reports:
        print(format_as_json(reports) if report.json_ else format_reports(reports, report.samples))


@with_groups
def tune(
    runs: list[Path] = RUNS,
    *,
    model: ModelGroup,
    valid: str = scored_option("NAME", "Text to tune on, as for --split.", default="valid"),
    split: str | None = SPLIT,
    beam_size: str = search_option("N,...", "Beam sizes; 1 is greedy search.", default="1,4,8"),
    length_penalty: str = search_option(
        "ALPHA,...", "Exponents of the length penalty of beam search.", default="0.6,1,1.4,2"
    ),
    quiet: bool = QUIET,
) -> None:
    """Choose beam size and length penalty by validation BLEU.

    Each setting translates the validation text; the one with the best BLEU, of several runs the
    best mean, translates the test set.

    \b
    transformer-mt tune checkpoints/wmt16-base --beam-size 4 --length-penalty 0.6,0.8,1
    transformer-mt tune runs/base-1 runs/base-2 runs/base-3
    """
    try:
        grid = product(map(int, beam_size.split(",")), map(float, length_penalty.split(",")))
        searches = [SearchOptions(*pair, batch_tokens=model.batch_tokens) for pair in grid]
    except ValueError:
        raise ConfigError("--beam-size and --length-penalty: write numbers, such as 4,8") from None
    # Greedy search has no length penalty.
    greedy = (replace(s, length_penalty=0.0) if s.beam_size == 1 else s for s in searches)
    searches = [*dict.fromkeys(greedy)]
    from transformer_mt.evaluation.tuning import format_tuning, tune_search

    options = LoadOptions(model.device, model.precision, model.max_length, model.raw)
    runs = list({realpath(run): run for run in runs}.values())  # one named twice counts once
    if tuned := tune_search(runs, (valid, split), searches, options):
        print(format_tuning(runs, tuned))
