"""A page that is one file: it opens without a network, and nothing in it runs."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


# ---- HTML and SVG as text; strings that are not markup are escaped ----

_VOID = frozenset({"input", "meta"})


class Markup(str):
    """Text that is HTML already; `element` escapes all other text."""

    __slots__ = ()


def element(tag: str, *children: str, **attributes: object) -> Markup:
    """Return an element.

    Args:
        tag: Its name.
        children: Text, which is escaped, and `Markup`, which is not.
        attributes: By their names, `-` written as `_`, and `class_` for `class`. None leaves one
            out, True writes its name alone; numbers have at most two decimals.
    """
    words = [tag]
    for name, value in attributes.items():
        if value is not None:
            written = name.rstrip("_").replace("_", "-")
            words.append(written if value is True else f'{written}="{escape(_text(value))}"')
    opened = f"<{' '.join(words)}>"
    if tag in _VOID:
        return Markup(opened)
    return Markup(f"{opened}{joined(*children)}</{tag}>")


def joined(*parts: str) -> Markup:
    """Return joined parts; strings that are not markup are escaped."""
    return Markup("".join(p if isinstance(p, Markup) else escape(p, quote=False) for p in parts))


def number(value: float) -> str:
    """Return a coordinate: at most two decimals, and no minus before zero."""
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def _text(value: object) -> str:
    return number(value) if isinstance(value, float) else str(value)


# ---- the style of pages: colour-blind-safe colours, on light and dark backgrounds ----

# Okabe and Ito's, the light ones darkened and the dark ones lightened until each has a contrast of
# 3:1 to its ground (WCAG 2.2, 1.4.11) and differs from the others by 12 (CIE76) where a kind of
# cone is missing (Machado et al., 2009).
LIGHT: Final = ("#0060a8", "#d55e00", "#008a63", "#c4689c", "#6e5c00", "#3d97cf")
DARK: Final = ("#3d8fd6", "#ff8a3d", "#20b88a", "#e59ccb", "#f0e442", "#a8dcff")
GROUNDS: Final = {"light": "#ffffff", "dark": "#16181d"}
INKS: Final = {"light": "#1c1f24", "dark": "#e8eaed"}
FAINT_INKS: Final = {"light": "#5c636e", "dark": "#a2a9b4"}
LINES: Final = {"light": "#d9dce1", "dark": "#363b44"}
DASHES: Final = ("", "7 3", "2 3", "9 3 2 3", "14 4")
NUM_LOOKS: Final = len(LIGHT) * len(DASHES)

FONT: Final = 11  # Of pictures, in their units: pixels on a wide screen.
NARROW_FONT: Final = 17  # On a narrow one, which shrinks a picture to six tenths.
WIDE: Final = "wide"  # The class of texts that only wide screens have room for.
NARROW_BARS: Final = 335  # Pixels of the axis of bars on a screen of 400.
_NARROW_REM, _STACKED_REM = 36, 48  # Widths of a screen up to which pictures and bars are narrow.

_HEAT_SHARES = (12, 26, 42, 60)  # Percent of a colour: ink keeps a contrast of 4.5:1 on them.

_RULES = """\
*{box-sizing:border-box}
body{margin:0 auto;padding:1.2rem;max-width:1240px;background:var(--ground);color:var(--ink);
font:15px/1.5 system-ui,sans-serif}
h1{font-size:1.5rem;line-height:1.25;margin:0 0 .8rem}
h2{font-size:1.15rem;margin:2.2rem 0 .6rem}
h1,h2,p,dd,th,td,label,figcaption{overflow-wrap:anywhere}
dl{display:grid;grid-template-columns:fit-content(40%) 1fr;gap:.1rem 1rem;margin:0}
dt,.faint{color:var(--faint)}
dd{margin:0}
.partial,.report{border-left:4px solid var(--c1);padding:.3rem .8rem}
.report{margin:0 0 1rem;overflow-x:auto;white-space:pre-wrap;overflow-wrap:anywhere}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,480px),1fr));gap:.6rem}
.charts>:only-child{max-width:760px}
.charts.small>:only-child,.pictures .charts.small{max-width:420px}
.charts.small{grid-template-columns:repeat(auto-fit,minmax(min(100%,340px),1fr))}
figure{margin:0;min-width:0;overflow-x:auto}
figcaption{font-weight:600}
figcaption small{display:block;font-weight:400;color:var(--faint)}
.plot{display:block;width:100%;height:auto;font-size:var(--font);font-family:inherit}
.plot text,.axis text{fill:var(--faint)}
.plot .what,.plot .title{fill:var(--ink)}
.grid{stroke:var(--line);stroke-width:1}
.mark{stroke:var(--faint)}
.line{fill:none;stroke:currentColor;stroke-width:2;stroke-linejoin:round}
.band{fill:currentColor;opacity:.14}
.dot{fill:currentColor;stroke:transparent;stroke-width:9}
.dot:hover{stroke:currentColor;stroke-width:3}
.change{fill:var(--ground);stroke:currentColor;stroke-width:2}
.measured .dot{fill:var(--ground);stroke:currentColor;stroke-width:1.5}
.measured .dot:hover{fill:currentColor}
.strip{fill:currentColor;fill-opacity:.2;stroke:currentColor;stroke-width:1}
.ink{color:var(--ink)}
.legend{display:flex;flex-wrap:wrap;gap:.1rem 1.1rem;margin:.3rem 0;font-size:.9rem}
.legend label{display:inline-flex;align-items:center;gap:.4rem}
.legend svg{flex:none}
.notes{margin:.4rem 0;padding-left:1.1rem;font-size:.9rem}
details{margin:.5rem 0}
details details{margin-left:1.1rem}
summary{cursor:pointer}
.right{background:color-mix(in srgb,var(--c2) 22%,var(--ground))}
.scroll{overflow-x:auto;max-height:32rem}
.named-lanes{display:flex;gap:.5rem;max-height:32rem;overflow-y:auto}
.named-lanes>svg{flex:none}
.last{direction:rtl;max-height:none;min-width:0}
.last>svg{direction:ltr}
table{border-collapse:collapse;font-size:.85rem;font-variant-numeric:tabular-nums}
.rows th,.rows td{padding:.1rem .6rem;text-align:right;white-space:nowrap;
border-bottom:1px solid var(--line)}
.rows th{font-weight:600;white-space:normal;overflow-wrap:normal;vertical-align:bottom}
.rows thead{position:sticky;top:0;z-index:2;background:var(--ground)}
.named th:first-child,.named td:first-child{text-align:left;position:sticky;left:0;z-index:1;
background:var(--ground)}
.texts th,.texts td{text-align:left;white-space:normal;overflow-wrap:normal;vertical-align:top}
.texts td:first-child{white-space:nowrap}
.bars{width:100%;table-layout:auto}
.bars th{font-weight:400;text-align:left;padding:.15rem .8rem .15rem 0;overflow-wrap:break-word;
max-width:24rem}
.bars td{padding:.15rem 0;white-space:nowrap}
.bars td:nth-child(2){width:70%;padding-right:1.5rem;min-width:8rem}
.bars td:last-child{padding-left:.8rem;text-align:right}
.bars svg{display:block;width:100%;overflow:visible;font-size:var(--font)}
.bars rect{fill:currentColor}
@media print{details{display:block}.scroll{max-height:none}}
"""

_NARROW_RULES = f"""\
@media (max-width:{_STACKED_REM}rem){{
.bars,.bars tbody{{display:block}}
.bars tr{{display:grid;grid-template-columns:1fr auto}}
.bars th{{grid-area:1/1;max-width:none;padding-top:.4rem}}
.bars td:last-child{{grid-area:1/2;padding-top:.4rem}}
.bars td:nth-child(2){{grid-area:2/1/2/3;width:auto}}
}}
@media (max-width:{_NARROW_REM}rem){{
.plot:not(.small){{--font:{NARROW_FONT}px}}
.plot .what{{font-size:.9em}}
.plot .{WIDE}{{display:none}}
.rows th,.rows td{{padding:.1rem .35rem}}
.named td:first-child,.texts td:first-child{{white-space:normal;max-width:45vw}}
.named td:first-child{{overflow-wrap:anywhere;min-width:8rem}}
}}
"""


def css(num_curves: int) -> str:
    """Return the style sheet; a box of a legend hides the curve of its number."""
    hiding = "".join(
        f".pictures:has(.t{index}:not(:checked)) .s{index}{{display:none}}\n"
        for index in range(num_curves)
    )
    heats = "".join(
        f".{side}{level}{{background:color-mix(in srgb,var(--c{colour}) {share}%,var(--ground))}}\n"
        for colour, side in enumerate(("low", "high"))
        for level, share in enumerate(_HEAT_SHARES, 1)
    )
    looks = "".join(f".k{index}{{color:var(--c{index})}}\n" for index in range(len(LIGHT)))
    looks += f".k{len(LIGHT)}{{color:var(--faint)}}\n"  # Of what only waits.
    dark = f"@media (prefers-color-scheme:dark){{:root{{{_variables('dark', DARK)}}}}}\n"
    light = f":root{{color-scheme:light dark;--font:{FONT}px;{_variables('light', LIGHT)}}}\n"
    return f"{light}{dark}{_RULES}{_NARROW_RULES}{looks}{heats}{hiding}"


def _variables(mode: str, colours: tuple[str, ...]) -> str:
    named = {"ground": GROUNDS, "ink": INKS, "faint": FAINT_INKS, "line": LINES}
    facts = [f"--{name}:{by_mode[mode]}" for name, by_mode in named.items()]
    return ";".join([*facts, *(f"--c{index}:{colour}" for index, colour in enumerate(colours))])


# ---- a page that is one file: it opens without a network, and nothing in it runs ----

_NOTHING_ELSE = "default-src 'none'; style-src 'unsafe-inline'"  # What a browser may load or run.


def document(
    title: str,
    facts: Sequence[tuple[str, str]],
    body: Iterable[Markup],
    *,
    partial: str | None = None,
    report: str | None = None,
    num_curves: int = 0,
) -> str:
    """Return a whole page.

    Args:
        title: Its heading, and the name of the window.
        facts: What was run, as names and values.
        body: What follows.
        partial: What is missing, if something is.
        report: The report of a failed run, shown before everything else.
        num_curves: Of the picture that has most.
    """
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_NOTHING_ELSE),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", title),
        element("style", Markup(css(num_curves))),
    )
    listed = [joined(element("dt", name), element("dd", value)) for name, value in facts]
    said = [] if partial is None else [element("p", f"Partial: {partial}", class_="partial")]
    if report is not None:
        said.insert(0, element("pre", report, class_="report"))
    parts = (element("h1", title), *said, element("dl", *listed), *body)
    page = element("html", head, "\n", element("body", element("main", *parts)), lang="en")
    return f"<!DOCTYPE html>\n{page}\n"


def section(title: str, *parts: Markup) -> Markup:
    """Return a part of a page under a heading."""
    return joined("\n", element("section", element("h2", title), *parts))


def notes(lines: Iterable[str]) -> Markup:
    """Return remarks, or nothing where there are none."""
    items = [element("li", line) for line in lines]
    return element("ul", *items, class_="notes") if items else Markup("")


def folded(title: str, *parts: Markup) -> Markup:
    """Return a section that opens at a click on its title."""
    return joined("\n", element("details", element("summary", title), *parts))


def table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], class_: str = "rows"
) -> Markup:
    """Return a table that scrolls if it is too large.

    Args:
        title: The contents, for screen readers.
        columns: Their names, with units.
        rows: Their cells: texts, or whole elements.
        class_: What it looks like.
    """
    head = element("tr", *(element("th", name, scope="col") for name in columns))
    lines = [joined("\n", element("tr", *map(_cell, row))) for row in rows]
    drawn = element("table", element("thead", head), element("tbody", *lines), class_=class_)
    # Without a mouse, keys scroll the focused element.
    return element("div", drawn, class_="scroll", tabindex="0", role="region", aria_label=title)


def _cell(cell: str) -> Markup:
    return cell if isinstance(cell, Markup) else element("td", cell)


def folded_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Markup:
    """Return a table that is shown when its title is opened.

    Args:
        title: What it shows.
        columns: Their names, with units.
        rows: Their cells.
    """
    return folded(title, table(title, columns, rows))


def heat(text: str, value: float | None, steps: Sequence[float]) -> Markup:
    """Return a table cell whose colour shows a value's distance and sign from zero.

    Args:
        text: What it says.
        value: What its colour shows; None: nothing.
        steps: From which distances on it has the next colour: four at most.
    """
    level = sum(abs(value) >= step for step in steps) if value is not None else 0
    side = "low" if value is not None and value < 0 else "high"
    return element("td", text, class_=f"{side}{level}" if level else None)


def grade(text: str, value: float, steps: Sequence[float]) -> Markup:
    """Return a table cell from green to red.

    Args:
        text: What it says.
        value: What its colour shows.
        steps: From which values on it is redder: four at most; below the first it is green.
    """
    level = sum(value >= step for step in steps)
    return element("td", text, class_=f"high{level}" if level else "right")
