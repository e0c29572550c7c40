"""Plain words: phrases that pages, printed texts and commits do not use, each with its rewrite."""

from __future__ import annotations

import ast
import re
from functools import cache
from inspect import cleandoc
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_FIRST_LINE = 90

# Pattern: rewrite. A pattern has no false alarms on today's texts; keep it so.
REWRITES = {
    r"\b(who|whoever|whatever|somebody|nobody|everybody)\b": "name the rank, caller or module",
    r"\bnine of ten\b": "90% interval",
    r"\bReturn what\b": "name the returned object",
    r"\bwhat is (asked|aimed|late|tried|told)\b": "the noun: request, target, delay, report",
    r"\b(is|are) told\b": "is reported, gets an error",
    r"\bsits? out\b|\bsat out\b": "is inactive",
    r"\b(ranks?|they|it|that|where) parted\b|\bto part\b": "diverged, divergence",
    r"\bheld out\b": "cross-validated",
    r"\baloud\b": "with a warning",
    r"\bon purpose\b": "injected, deliberate",
    r"\brefused by name\b": "not supported",
    r"\bx [\d.]+ would do\b": "the factor that fits",
    r"\bby whom\b|\bto whom\b|\bof whom\b": "the noun",
    r"\bwithout its sign\b": "MAE and bias",
    r"\banew\b": "again, restart, rewrite",
    r"\bunasked\b": "by default",
    r"\bgoes wrong\b": "fails, injected fault",
    r"\btakes? the choice away\b": "forces an algorithm",
    r"\bhave (it|them|that) that\b": "name the subject",
    r"\b(?-i:There) is none\b|\b(it|they) (is|are) (?-i:none)\b(?! of)": "missing or unknown",
    r"\bfor ever\b": "forever",
    r"\bof no account\b": "ignored",
    r"\b(is|are|was|were) asked of\b": "the caller reads it from",
    r"\bstands? in for\b|\bstand-ins?\b": "replaces, patch",
    r"\btakes of each\b": "time per resource",
}
_PATTERN = {re.compile(pattern, re.IGNORECASE): rewrite for pattern, rewrite in REWRITES.items()}
_ANY = re.compile("|".join(f"(?:{pattern})" for pattern in REWRITES), re.IGNORECASE)
# Words that name no function, class or module.
_NO_NAME = re.compile(
    r"(?:^|_)(?:who|whom|whose|whoever|what|whatever|those|told|come|came|nobody|somebody)(?:_|$)"
)
_CAPITAL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
_NO_PROSE = re.compile(
    r"^```.*?^```$|`[^`\n]*`|\]\([^)\s]*\)|\[\d{4}-[^\]]*\]", re.DOTALL | re.MULTILINE
)
MAX_SUBJECT = 72
# A subject begins with one of these; add a verb that is missing.
_VERBS = """
    accept accumulate adapt add adopt align allow annotate answer apply ask assert attach avoid
    batch begin bind bound build bump cache calibrate call cancel carry cast catch change charge
    check choose clear clone close coalesce collect compare compile compute configure convert
    copy correct cost count cover cross-validate cut declare define delay delete deprecate
    derive describe detect disable dispatch display distribute document draw drop dump emit
    emulate enable end enforce enter estimate evaluate execute expect explain export extend
    extract fail fetch fill find finish fit fix fold follow forbid forget format forward free
    freeze gather generate give group guard handle hash hide hold hook ignore implement import
    improve include increase index infer inline insert inspect install isolate issue join judge
    keep label launch leave let limit link list load lock log look lower make map mark match
    measure mend merge migrate mirror model mount move name narrow normalize note observe omit
    open order overlap own pack park parse pass patch pick pin place plan play poll pool predict
    prefer prepare price print prove publish put quote raise read rebuild record reduce refer
    refine refuse register reject release remove rename render reorder repair repeat replace
    replay report request require reserve reset resolve restore restrict resume retry return
    reuse revert reword rewrite round route run sample save say scale schedule score search seed
    select send separate serialize set share ship shorten show simplify simulate size skip sort
    speed spell split stamp start state stop store stream strip sum support suppress swap
    synchronize take teach test tidy time trace track train translate tune turn type-check unify
    update upgrade use validate verify visit wait wake walk warm warn watch widen wrap write
    yield
"""
VERBS = frozenset(_VERBS.split())
# Rule 1 of docstrings: an imperative verb and a concrete object; a noun for classes and modules.
_NO_NOUN = re.compile(
    r"(Return (what|who|how|which|where|it)|Let|Have|Be|Tell|What|Who|How|Which|Where|In which"
    r"|Stands? (for|in))\b|.*\b(who|whom|whoever|whatever|nobody|somebody|everybody)\b"
)


def breaches_of_page(text: str) -> Iterator[str]:
    """Yield each phrase of a Markdown page that has a rewrite, without code, links and paths."""
    blank = _NO_PROSE.sub(lambda found: "\n" * found[0].count("\n"), text)
    for number, line in enumerate(blank.splitlines(), 1):
        yield from (f"line {number}: {breach}" for breach in _breaches(line))


class Function(NamedTuple):
    """A function of a module: its lines, and those of its body without the docstring."""

    name: str
    line: int
    num_lines: int
    num_body_lines: int
    has_docstring: bool


class Import(NamedTuple):
    """An import that runs, and its line."""

    module: str
    is_inside: bool
    line: str


class Words(NamedTuple):
    """The words of a module.

    Attributes:
        strings: With their lines.
        docstrings: Those of the module, its classes and functions.
        comments: With their lines.
        names: Identifiers, and the words of strings on one line.
        functions: All, those inside others too.
        classes: Likewise.
        imports: Those that run: not for types alone.
    """

    strings: list[tuple[int, str]]
    docstrings: list[str]
    comments: list[tuple[int, str]]
    names: set[str]
    functions: list[Function]
    classes: list[str]
    imports: list[Import]


# Docstrings and other strings of several lines; strings of one; comments.
_TOKEN = re.compile(
    r'"""(?:[^\\]|\\.)*?"""|("(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\')|(#[^\n]*)', re.DOTALL
)


@cache
def words_of(source: str) -> Words:
    """Return the words of a module, read once for all rules. Trees, if kept, slow every test."""
    comments = [
        (source.count("\n", 0, found.start()) + 1, found[2])
        for found in _TOKEN.finditer(source)
        if found[2]
    ]
    names = set(re.findall(r"\w+", _TOKEN.sub(lambda found: found[1] or " ", source)))
    words = Words([], [], comments, names, [], [], [])
    _visit(ast.parse(source), words, source.splitlines())
    return words


def _visit(node: ast.AST, words: Words, lines: list[str], *, is_inside=False, runs=True) -> None:
    is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    if isinstance(node, ast.Constant):
        if isinstance(node.value, str):
            words.strings.append((node.lineno, node.value))
    elif isinstance(node, ast.Import | ast.ImportFrom):
        if runs:
            of = f"{node.module}." if isinstance(node, ast.ImportFrom) and node.module else ""
            line = lines[node.lineno - 1]
            words.imports.extend(Import(of + each.name, is_inside, line) for each in node.names)
    elif isinstance(node, DOCUMENTED):
        docstring = ast.get_docstring(node, clean=False)
        words.docstrings.extend([] if docstring is None else [docstring])
        if is_function:
            words.functions.append(_function(node, has_docstring=docstring is not None))
        elif isinstance(node, ast.ClassDef):
            words.classes.append(node.name)
    elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
        runs = False
    for child in ast.iter_child_nodes(node):
        _visit(child, words, lines, is_inside=is_inside or is_function, runs=runs)


def _function(node: ast.FunctionDef | ast.AsyncFunctionDef, *, has_docstring: bool) -> Function:
    body = node.body[has_docstring:]
    num_body_lines = (body[-1].end_lineno or 0) - body[0].lineno + 2 if body else 0
    num_lines = (node.end_lineno or node.lineno) - node.lineno + 1
    return Function(node.name, node.lineno, num_lines, num_body_lines, has_docstring)


def breaches_of_source(source: str) -> Iterator[str]:
    """Yield each phrase that has a rewrite, in strings and comments of a module."""
    words = words_of(source)
    for number, text in [*words.strings, *words.comments]:
        yield from (f"line {number}: {breach}" for breach in _breaches(text))


def _breaches(text: str) -> Iterator[str]:
    if not _ANY.search(text):  # Nearly always.
        return
    for pattern, rewrite in _PATTERN.items():
        for found in pattern.finditer(text):
            yield f"{found[0]!r}; to fix: {rewrite}"


def is_no_name(name: str) -> bool:
    """Return whether a function, class or module is named by a word that names nothing."""
    return bool(_NO_NAME.search(_CAPITAL.sub("_", name).lower()))


def breaches_of_subject(subject: str) -> Iterator[str]:
    """Yield each rule of commit subjects that one breaks."""
    if len(subject) > MAX_SUBJECT:
        yield f"{subject!r} has {len(subject)} characters; to fix: at most {MAX_SUBJECT}"
    verb, _, rest = subject.partition(" ")
    if verb.lower() not in VERBS or not rest or not subject[0].isupper():
        yield f"{subject!r} begins with no known verb; to fix: imperative, as in VERBS"
    if subject.endswith("."):
        yield f"{subject!r} ends with a period; to fix: leave it out"
    yield from _breaches(subject)


def poor_first_lines(source: str) -> list[str]:
    """Return first lines of docstrings that are too long, or that no plain verb begins."""
    lines = [cleandoc(text).partition("\n")[0] for text in words_of(source).docstrings]
    return [line for line in lines if len(line) > MAX_FIRST_LINE or _NO_NOUN.match(line)]


_NAME = re.compile(r"`([a-z_]\w*(?:\.\w+)*)(?:\(\))?`")


def quoted_names(source: str) -> Iterator[str]:
    """Yield the lower-case names in backticks of docstrings and comments."""
    words = words_of(source)
    for text in [*words.docstrings, *(comment for _, comment in words.comments)]:
        yield from (found[1] for found in _NAME.finditer(text))
