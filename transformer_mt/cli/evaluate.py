"""The command `evaluate`: check what was typed, call, print."""

from functools import partial
from pathlib import Path
from typing import Annotated

from transformer_mt.cli.options import (
    BatchOption,
    BeamOption,
    DeviceOption,
    EnsembleOption,
    LengthOption,
    OverwriteOption,
    PenaltyOption,
    PrecisionOption,
    QuietOption,
    RawOption,
    argument,
    choose_length_penalty,
    flag,
    option,
)
from transformer_mt.errors import ConfigError
from transformer_mt.system.console import show_messages
from transformer_mt.system.launcher import is_main_process
from transformer_mt.system.outputs import Output, check_output, resolve_inputs
from transformer_mt.system.process_settings import interrupt_on_signals
from transformer_mt.system.streams import require_input
from transformer_mt.translation.options import LoadOptions, SearchOptions, TranslateOptions

REPORT = "What to report"
scored_option = partial(option, group="What to score")
report_option = partial(option, group=REPORT)


def evaluate(
    paths: Annotated[
        list[Path] | None,
        argument(
            "[RUN_OR_CHECKPOINT...]",
            "A run (its best checkpoint), a checkpoint, or what `export` wrote for CTranslate2;"
            " several are scored one by one. Not needed for --hypotheses with --ref or --test-set.",
        ),
    ] = None,
    split: Annotated[
        str | None,
        scored_option(
            "NAME",
            "train, valid or test, as configured, another split of the corpus, or /FOLDER/NAME for"
            " that of a folder. Default: test.",
        ),
    ] = None,
    test_set: Annotated[
        str | None,
        scored_option("NAME", "sacreBLEU's name of a test set, such as wmt16, instead of a split."),
    ] = None,
    src: Annotated[Path | None, scored_option("FILE", "Source text, instead of a split.")] = None,
    ref: Annotated[
        list[Path] | None,
        scored_option("FILE", "Reference translation; may be repeated for several references."),
    ] = None,
    hypotheses: Annotated[
        Path | None, scored_option("FILE", "Score this translation instead of making one.")
    ] = None,
    baseline: Annotated[
        Path | None, scored_option("RUN_OR_FILE", "Compare with this run or translation.")
    ] = None,
    src_lang: Annotated[
        str | None, scored_option("NAME", "Language of the source, if no run tells it.")
    ] = None,
    tgt_lang: Annotated[
        str | None, scored_option("NAME", "Language of the translation, likewise.")
    ] = None,
    ensemble: EnsembleOption = False,
    beam_size: BeamOption = SearchOptions.beam_size,
    length_penalty: PenaltyOption = None,
    precision: PrecisionOption = LoadOptions.precision,
    batch_tokens: BatchOption = None,
    max_length: LengthOption = None,
    device: DeviceOption = LoadOptions.device,
    raw: RawOption = False,
    save: Annotated[Path | None, report_option("FILE", "File to save the translation to.")] = None,
    overwrite: OverwriteOption = False,
    ter: Annotated[bool, flag("Compute TER too.", "--ter", group=REPORT)] = False,
    tokenize: Annotated[
        str | None,
        report_option(
            "NAME",
            "sacreBLEU's tokenizer for BLEU, such as 13a, intl, char, zh, ja-mecab or flores200."
            " Default: the run's valid.tokenize; without a run 13a, or char by the script.",
        ),
    ] = None,
    samples: Annotated[
        int | None,
        report_option(
            "N",
            "Sentences to show. Default: 0; with --baseline the 3 best and worst changes.",
            min=0,
        ),
    ] = None,
    json_: Annotated[
        bool, flag("Print JSON: one object for each run, one per line.", "--json", group=REPORT)
    ] = False,
    quiet: QuietOption = False,
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
    if not paths and (hypotheses is None or not (ref or test_set)):
        raise ConfigError("name a run, or --hypotheses with --ref or --test-set")
    if paths and len(paths) > 1 and not ensemble and (hypotheses or save):
        name = "--hypotheses" if hypotheses else "--save"
        raise ConfigError(f"{name} works with one run or --ensemble, not with several runs")
    penalty = choose_length_penalty(length_penalty, beam_size)
    output = _check_files(save, overwrite, hypotheses, src, *(ref or ()), baseline)
    from transformer_mt.evaluation.evaluate import evaluate_systems, format_as_json, format_reports
    from transformer_mt.evaluation.scoring import choose_metrics
    from transformer_mt.text.test_sets import load_test_set

    show_messages(quiet)
    with interrupt_on_signals():
        reports = evaluate_systems(
            runs=[paths] if paths and ensemble else [[path] for path in paths or ()],
            hypotheses=hypotheses,
            baseline=baseline,
            load_test_set=partial(
                load_test_set, split=split, src=src, refs=ref or (), test_set=test_set, save=output
            ),
            choose_metrics=partial(choose_metrics, tokenizer=tokenize, ter=ter),
            options=TranslateOptions(
                LoadOptions(device, precision, max_length, raw),
                SearchOptions(beam_size, penalty, batch_tokens=batch_tokens),
            ),
            languages={"src_lang": src_lang or "", "tgt_lang": tgt_lang or ""},
            save=output,
        )
    if reports:
        print(format_as_json(reports) if json_ else format_reports(reports, samples))


def _check_files(
    save: Path | None, overwrite: bool, hypotheses: Path | None, *others: Path | None
) -> Output | None:
    """Checks files in the main process; the others may run on machines without them."""
    if not is_main_process():
        return None
    require_input(hypotheses)
    return check_output(save, resolve_inputs([hypotheses, *others]), overwrite) if save else None
