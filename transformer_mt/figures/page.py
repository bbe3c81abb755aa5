"""A report as one HTML file: the template filled in, figures inline."""

import re
from importlib import resources
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from transformer_mt.figures.canvas import Style, render

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAGE_STYLE = Style(foreground="#010101", grid="#020202", accent="#3a7fc4", background="none")
"""The accent is legible on white and on black; the other colours stand for those of the page."""

_SMALLEST = 0.6
"""Smallest share of its size to which the page may shrink a figure."""
_PAGE_COLORS = {PAGE_STYLE.foreground: "currentColor", PAGE_STYLE.grid: "var(--line)"}


class InlineFigures:
    """Embeds figures in a page, each with its own ids."""

    def __init__(self) -> None:
        self._count = 0

    def inline(self, figure: "Figure", description: str) -> Markup:
        """Renders a figure as a page element that takes on the page's colours.

        Args:
            figure: Drawn in `PAGE_STYLE`.
            description: What it shows, for those who cannot see it.
        """
        self._count += 1
        text = render(figure, "svg").decode()
        text = text[text.index("<svg") :]
        text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
        text = re.sub(r'( id="|url\(#|href="#)', rf"\g<1>f{self._count}-", text)
        for color, name in _PAGE_COLORS.items():
            text = text.replace(color, name)
        # On a phone, a large figure scrolls rather than shrinking until it is unreadable.
        width = _SMALLEST * figure.get_size_inches()[0]
        start = Markup('<svg role="img" aria-label="{}" style="min-width: {:.2f}in"').format(
            description, width
        )
        return Markup(start + Markup(text.removeprefix("<svg")))


def fill_template(**values: Any) -> str:
    """Fills in the template of the report; text is escaped."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    source = resources.files(__package__).joinpath("report.html").read_text(encoding="utf-8")
    return environment.from_string(source).render(values)
