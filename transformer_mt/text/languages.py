"""The code of a language by which rules and tokenizers are chosen."""

import re

_CODES = """
    bos:bs ces:cs cze:cs dan:da deu:de ger:de ell:el gre:el eng:en est:et ekk:et fin:fi fra:fr
    fre:fr hrv:hr hun:hu isl:is ice:is jpn:ja kor:ko ltz:lb lav:lv lvs:lv nob:nb nno:nn nor:no
    pol:pl slk:sk slo:sk slv:sl srp:sr tur:tr zho:zh chi:zh cmn:zh
"""
_TWO_LETTERS = dict(pair.split(":") for pair in _CODES.split())
"""Codes of two letters by those of three, of the languages that have rules or a tokenizer."""


def language_code(name: str) -> str:
    """Returns the code of two letters of what a language is called: zh of zho, ZH and zh_CN."""
    code = re.split("[-_]", name.lower())[0]
    return _TWO_LETTERS.get(code, code)
