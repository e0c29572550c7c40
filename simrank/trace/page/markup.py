"""HTML and SVG as text; strings that are not markup are escaped."""

from __future__ import annotations

from html import escape

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
