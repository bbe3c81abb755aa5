"""Scores are sacreBLEU's own."""

import re
import sys
from pathlib import Path
from unittest.mock import Mock

import fork_server
import pytest
import sacrebleu
from conftest import copy_lines, refuses, write_lines

from transformer_mt.errors import ConfigError
from transformer_mt.evaluation import scoring
from transformer_mt.evaluation.scoring import choose_metrics, compare_scores, corpus_score

METRICS = choose_metrics("en")

OUTPUTS = ["The cat sat on the mat, quietly.", "", "He said: “No!” It is 3.5 % more", "A a b c d"]
REFS = ["The cat sat on a mat quietly.", "Nothing", "He said “No”. It is 3.5% more.", "a a b c d"]


def run_sacrebleu(folder: Path, words: str) -> str:
    """Runs the program of sacreBLEU in a folder; gives what it prints."""
    done = fork_server.run([sys.executable, "-m", "sacrebleu", *words.split()], cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode().strip()


def test_other_metrics_and_intervals_are_sacrebleus(tmp_path):
    """As `sacrebleu` prints them; a test has no bootstrap. Sabotage: leave any option out."""
    options = {"chrf_plus_plus": True, "ter": True, "lowercase": True, "confidence": True}
    metrics = choose_metrics("en", **options)
    hypotheses, references = ([*lines[:1], *lines[2:]] * 5 for lines in (OUTPUTS, REFS))
    scores = [corpus_score(hypotheses, [references], metric) for metric in metrics]
    write_lines(tmp_path, hyp=hypotheses, ref=references)
    for score, words in zip(scores, ("bleu -lc", "chrf", "chrf -cw 2", "ter"), strict=True):
        assert score.text == run_sacrebleu(tmp_path, f"ref -i hyp -w 2 -ci -f text -m {words}")
    assert [score.title for score in scores] == ["BLEU lc", "chrF2", "chrF2++", "TER"]
    assert [score.name for score in scores] == ["bleu", "chrf", "chrf++", "ter"]
    for score in scores:
        assert str(score) == f"{score.value:.2f} ± {score.confidence:.2f}"
        assert f"± {score.confidence:.2f})" in score.text
    several = [references, hypotheses[::-1]]
    expected = sacrebleu.BLEU(lowercase=True).corpus_score(hypotheses, several)
    score = corpus_score(hypotheses, several, choose_metrics("en", lowercase=True)[0])
    assert score.value == expected.score and "nrefs:2" in score.signature
    assert score.value != corpus_score(hypotheses, several[:1], metrics[0]).value
    differences = compare_scores(hypotheses, references, [references], metrics)
    assert [each.score for each in differences] == [score.title for score in scores]
    assert not any("bs:" in each.signature for each in differences)
    with pytest.raises(ConfigError, match="^--confidence: too few translations have text"):
        corpus_score(["", "", "c d"], [["a", "b", "c d"]], metrics[1])


CHINESE = ["他昨天去了北京。", "我们明天一起吃晚饭吧。"]
CHINESE_REFS = ["他昨天去北京了。", "我们明天一起吃晚饭吧!"]


def test_bleu_splits_text_as_sacrebleu_does_for_the_language(tmp_path):
    """Also in a comparison; `tokenizer` overrides it. Sabotage: use 13a for all languages."""
    for language in ("zho_Hans", "zh_CN", "ZH", "zh"):
        [bleu, _] = metrics = choose_metrics(language)
        score = corpus_score(CHINESE, [CHINESE_REFS], bleu)
        assert "|tok:zh|" in score.signature and score.tokenizer == "zh"
    write_lines(tmp_path, hyp=CHINESE, ref=CHINESE_REFS)
    printed = run_sacrebleu(tmp_path, "ref -i hyp -l en-zh -b -w 10")
    assert round(score.value, 10) == float(printed) > 50
    [difference, _] = compare_scores(CHINESE, CHINESE, [CHINESE_REFS], metrics)
    assert difference.system == score.value and "|tok:zh|" in difference.signature
    assert difference.p == 1.0  # of equal translations
    by_words = corpus_score(CHINESE, [CHINESE_REFS], choose_metrics("zh", "13a")[0])
    assert by_words.value < 1 and by_words.tokenizer == "13a"


def test_ter_counts_the_characters_of_chinese_and_japanese():
    """Not whole sentences. Sabotage: leave out `asian_support`."""
    for hypothesis, reference, language in (
        ("我们明天一起吃饭", "我们明天一起吃饭吧", "zh"),
        ("老师今天买书", "老师今天买了书", "yue"),
    ):
        *_, ter = choose_metrics(language, ter=True, references=[[reference]])
        score = corpus_score([hypothesis], [[reference]], ter)
        assert score.value == pytest.approx(100 / len(reference))
        assert "|norm:yes|punct:yes|asian:yes|" in score.signature


SENTENCES = {
    "ครูซื้อหนังสือที่ตลาดวันนี้และแม่พบปลา": ["th", "tha_Thai", "xx"],
    "ຄູຊື້ປຶ້ມຢູ່ຕະຫຼາດມື້ນີ້": ["lo"],
    "គ្រូទិញសៀវភៅនៅផ្សារថ្ងៃនេះ": ["km"],
    "ဆရာမသည်ယနေ့စျေးတွင်စာအုပ်ဝယ်သည်": ["my", "shn"],
    "དགེ་རྒན་གྱིས་དེ་རིང་ཁྲོམ་ནས་དཔེ་ཆ་ཉོས་སོང་།": ["bo", "dz"],
    "老师今天在市场买了一本书，妈妈找到水。": ["cn", "zht", "yue", "wuu", "lzh"],
    "先生は今日市場で本を買いました。": ["jp"],
}


@pytest.mark.parametrize(("sentence", "codes"), SENTENCES.items())
def test_bleu_is_by_characters_where_the_script_hardly_separates_words(sentence, codes, caplog):
    """As sacreBLEU's `char`, said once, under unknown codes. Sabotage: go by the code alone."""
    caplog.set_level("INFO")
    hypothesis = sentence[:-4] + sentence[-3:]
    char = sacrebleu.metrics.BLEU(tokenize="char", force=True)
    expected = char.corpus_score([hypothesis], [[sentence]]).score
    for code in codes:
        caplog.clear()
        [bleu, _] = choose_metrics(code, references=[[sentence]])
        score = corpus_score([hypothesis], [[sentence]], bleu)
        assert (score.tokenizer, score.value) == ("char", expected) and score.value > 60
        [message] = caplog.messages
        assert f"no tokenizer for the language {code}," in message
        assert "valid.tokenize or --tokenize" in message


def test_a_language_that_was_not_named_is_asked_for(caplog):
    """As without a run: `zh` is not `char`. Sabotage: show the empty key."""
    caplog.set_level("INFO")
    choose_metrics("", references=[CHINESE])
    assert "no tokenizer for an unknown language (--tgt-lang), and" in caplog.text


CHOICES = "en auto - 13a, zh auto - zh, th auto - char, th 13a - 13a, en intl - intl"


@pytest.mark.parametrize("words", [*CHOICES.split(","), "en intl char char", "en intl auto 13a"])
def test_the_choice_of_the_tokenizer(words):
    """Command line, configuration, language, script. Sabotage: exchange any two."""
    tgt_lang, configured, option, chosen = words.split()
    option = None if option == "-" else option
    text = CHINESE if tgt_lang == "zh" else [list(SENTENCES)[0] if tgt_lang == "th" else "A cat."]
    bleu, _ = choose_metrics(tgt_lang, option, references=[text], configured=configured)
    assert corpus_score(text, [text], bleu).tokenizer == chosen


@pytest.mark.parametrize(
    ("tgt_lang", "tokenizer", "message"),
    [
        ("ja", None, "the language ja: .*: pip install .* 'sacrebleu\\[ja\\]'"),
        ("en", "ko-mecab", "--tokenize ko-mecab: .*: pip install .* 'sacrebleu\\[ko\\]'"),
        ("en", "15a", "--tokenize 15a: choose none, zh, 13a, "),
        ("en", "flores200", "--tokenize flores200: cannot load .* no network"),
    ],
)
def test_a_tokenizer_that_is_missing(tgt_lang, tokenizer, message, tmp_path, monkeypatch):
    """Key or option, and what to install, are named. Sabotage: raise sacreBLEU's error."""
    monkeypatch.setattr("urllib.request.urlopen", Mock(side_effect=OSError("no network")))
    monkeypatch.setattr("sacrebleu.tokenizers.tokenizer_spm.SACREBLEU_DIR", str(tmp_path))
    for language in ("ja", "ko"):
        monkeypatch.setattr(f"sacrebleu.tokenizers.tokenizer_{language}_mecab.MeCab", None)
    refuses(ConfigError, message, choose_metrics, tgt_lang, tokenizer)
    with pytest.raises(ConfigError, match=r"^valid.tokenize = 15a: choose none, .*, auto$"):
        choose_metrics(tgt_lang, configured="15a")


def test_systems_are_compared_as_the_program_does(tmp_path):
    """Scores, p-values and signatures of its randomisation test, which takes the baseline first."""
    first, second = copy_lines(40, 5), copy_lines(40, 6)
    first = [f"{line} and so on" for line in first]
    mixed = [pair[i % 2] for i, pair in enumerate(zip(first, second, strict=True))]
    worse = [line if i % 3 else line[1:] for i, line in enumerate(mixed)]
    write_lines(tmp_path, ref1=first, ref2=second, system=mixed, baseline=worse)
    metrics = compare_scores(mixed, worse, [first, second], METRICS)
    # Its JSON of this fails in 2.6.0. As many exchanges as conftest.py sets.
    tool = "ref1 ref2 -w 10 -i baseline system -m bleu chrf --paired-ar --paired-ar-n 200 -f text"
    printed = run_sacrebleu(tmp_path, tool)
    values = [float(value) for value in re.findall(r"\d+\.\d{10}", printed)]
    old, new = [metric.baseline for metric in metrics], [metric.system for metric in metrics]
    assert values == [round(value, 10) for value in old + new]
    p_values = [float(value) for value in re.findall(r"\(p = (\d\.\d+)\)", printed)]
    assert p_values == [round(metric.p, 4) for metric in metrics] and 0 < p_values[0] < 0.5
    signatures = re.findall(r"^ - (?:BLEU|chrF2) +(\S+)$", printed, re.MULTILINE)
    assert signatures == [metric.signature for metric in metrics]
    assert [metric.score for metric in metrics] == ["BLEU", "chrF2"]


def test_no_difference_is_surer_than_its_sentences_allow():
    """Of two ways to exchange one sentence, both have this difference. Sabotage: sacreBLEU's p."""
    lines = copy_lines(40, 5)
    for count, p_value in ((1, 1.0), (2, 0.5), (4, 0.125)):
        worse = [line[1:] if i < count else line for i, line in enumerate(lines)]
        differences = compare_scores(lines, worse, [lines], METRICS)
        assert [difference.p for difference in differences] == [p_value] * 2
    ended = [f"{line}\r" for line in worse]  # to the metrics, the others are still the same
    assert [each.p for each in compare_scores(lines, ended, [lines], METRICS)] == [0.125] * 2


def test_the_best_reference_counts_for_a_sentence():
    """Sabotage: score each sentence against the first reference."""
    hypotheses, references = ["a b c", "x y z"], [["a b c", "nothing"], ["else", "x y z"]]
    assert scoring.sentence_chrf(hypotheses, references) == [100.0, 100.0]
    direct = sacrebleu.sentence_chrf("a b d", ["a b c", "else"]).score
    assert scoring.sentence_chrf(["a b d"], [["a b c"], ["else"]]) == [direct]
