"""The YAML of a plan: one training command, run for every layout and cluster.

```yaml
command: train.py --tp {tp} --pp {pp} --batch {batch}   # as after `simrank run` or `torchrun`
clusters: [h100_ib, b200_ib]
parameters: {nnodes: [4, 8], tp: [2, 4, 8], pp: [1, 2], batch: [1, 2]}
derived: {dp: num_ranks // (tp * pp)}
where: tp * pp <= num_ranks
tokens_per_step: dp * batch * 8192
```

Combinations that are no grid are listed: `layouts: [{tp: 1, micro: 2}, {tp: 8, micro: 1}]`.
"""

import ast
import math
import operator
import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise, product
from math import prod
from pathlib import Path
from string import Formatter
from typing import Annotated, Any, NamedTuple

from pydantic import BeforeValidator

from simrank.config.cluster import ClusterConfig
from simrank.config.load import read_cluster, with_nodes
from simrank.config.locate import builtin_names, located
from simrank.config.model import Model, validate
from simrank.config.quantity import Text, closest, reject
from simrank.config.sweep import MAX_RUNS, cluster_key
from simrank.config.yaml_source import KeyPath, Source, read_yaml
from simrank.errors import ConfigError
from simrank.units import parse_size

NODES, RANKS_PER_NODE = "nnodes", "nproc_per_node"  # Parameters that `simrank run` takes, too.
CLUSTER, NUM_RANKS = "cluster", "num_ranks"
# Columns of a row besides the parameters.
MEASURES = (
    "num_steps", "step_ms", "low_ms", "high_ms", "tokens_per_s", "tokens_per_s_per_rank", "mfu",
    "parts_ms", "peak_allocated_bytes", "peak_reserved_bytes", "memory_by_kind_bytes",
    "memory_bytes", "grouped_share",
)  # fmt: skip
FITS, ERROR, INPUTS = "fits", "error", "inputs"
_LAUNCHER = re.compile(
    r"^\s*(torchrun|simrank run|python[\d.]* -m torch\.distributed\.(run|launch)"
    r"|python[\d.]*( -u)?)\s"
)
# Options of `simrank run` that a plan gives itself, and where a plan says what they do.
_OWN_OPTIONS = {
    "--cluster": "`clusters`", "--nnodes": "the parameter `nnodes`", "--summary": None,
    "--nproc-per-node": "the parameter `nproc_per_node`", "--prefix": None, "--html": None,
    "--tokens-per-step": "`tokens_per_step`", "--trace": None,
}  # fmt: skip


def _parameters(value: object) -> dict[str, tuple[Any, ...]]:
    """Validate parameters: for each a value, or a list of them."""
    if not isinstance(value, Mapping) or not value:
        raise reject("a mapping from parameter to a value or a list of values")
    values_by_name = {}
    for name, given in value.items():
        _check_name(name)
        items = tuple(given) if isinstance(given, list | tuple) else (given,)
        if not items:
            raise reject("at least one value", sub=(name,))
        for index, item in enumerate(items):
            sub = (name, index) if isinstance(given, list | tuple) else (name,)
            if not isinstance(item, bool | int | float | str):
                raise reject("a number or a text", sub=sub)
            is_count = isinstance(item, int) and not isinstance(item, bool) and item >= 1
            if name in (NODES, RANKS_PER_NODE) and not is_count:
                raise reject("a whole number from 1", sub=sub)
        values_by_name[name] = tuple({str(item): item for item in items}.values())
    return values_by_name


def _layouts(value: object) -> tuple[Mapping[str, Any], ...]:
    """Validate a list of mappings that all give the same parameters one value each."""
    if not isinstance(value, list | tuple) or not value:
        raise reject("a list of mappings from parameter to value")
    for index, layout in enumerate(value):
        if not isinstance(layout, Mapping) or not layout:
            raise reject("a mapping from parameter to value", sub=(index,))
        if layout.keys() != value[0].keys():
            raise reject(f"values of {', '.join(map(str, value[0]))}", sub=(index,))
        for name, item in layout.items():
            _check_name(name)
            if name in (NODES, RANKS_PER_NODE):
                raise reject(f"`{name}` among the parameters", sub=(index, name))
            if not isinstance(item, bool | int | float | str):
                raise reject("a number or a text", sub=(index, name))
    return tuple({str([*layout.values()]): layout for layout in value}.values())


def _expression(value: object) -> str:
    """Validate the text of an expression; a number is one."""
    if isinstance(value, bool | int | float):
        return str(value)
    if isinstance(value, str) and value.strip():
        return value.strip()
    raise reject("an expression of the parameters, such as tp * pp <= num_ranks")


def _derived(value: object) -> dict[str, str]:
    """Validate expressions by name."""
    if not isinstance(value, Mapping):
        raise reject("a mapping from name to expression")
    for name in value:
        _check_name(name)
    return {name: _expression(text) for name, text in value.items()}


def _check_name(name: object) -> None:
    """Raise the error of a name that a row or an expression cannot have."""
    taken = (CLUSTER, NUM_RANKS, FITS, ERROR, INPUTS, *MEASURES, *_FUNCTIONS, "GPUs", "MFU")
    if not isinstance(name, str) or not name.isidentifier():
        raise reject("a name of letters, digits and _", sub=(name,))
    if name in taken:
        raise reject("another name: this one is a column or a function", sub=(name,))


Expression = Annotated[str, BeforeValidator(_expression)]


class _Keys(Model):
    """The keys as written in YAML; see `PlanConfig`."""

    command: Text
    cluster: object = None
    clusters: object = None
    parameters: Annotated[Mapping[str, tuple[Any, ...]], BeforeValidator(_parameters)]
    layouts: Annotated[tuple[Mapping[str, Any], ...], BeforeValidator(_layouts)] = ({},)
    derived: Annotated[Mapping[str, str], BeforeValidator(_derived)] = {}
    where: Expression | None = None
    tokens_per_step: Expression | None = None


class PlanCell(NamedTuple):
    """One run of a plan.

    Attributes:
        cluster: Its name or path, as `simrank run --cluster` takes it.
        config: The cluster, with the nodes that run.
        chosen: The parameters.
        values: All names that expressions and the command may use, with their values.
        tokens_per_step: Of all ranks together; None if the plan does not say.
        options: Options of `simrank run` in the command.
        program: The program and its arguments.
        memory_bytes: Of a device.
    """

    cluster: str
    config: ClusterConfig
    chosen: dict[str, Any]
    values: dict[str, Any]
    tokens_per_step: int | None
    options: tuple[str, ...]
    program: tuple[str, ...]
    memory_bytes: int

    @property
    def columns(self) -> dict[str, Any]:
        """The first columns of the run's row."""
        ranks = {NUM_RANKS: self.values[NUM_RANKS]}
        return {CLUSTER: self.values[CLUSTER], **self.chosen, **ranks}

    def run_options(self) -> list[str]:
        """Return the options of `simrank run` that say where the command runs."""
        found = ["--cluster", self.cluster]
        if NODES in self.chosen:
            found += ["--nnodes", str(self.chosen[NODES])]
        if RANKS_PER_NODE in self.chosen:
            found += ["--nproc-per-node", str(self.chosen[RANKS_PER_NODE])]
        if self.tokens_per_step is not None:
            found += ["--tokens-per-step", str(self.tokens_per_step)]
        return found


class PlanConfig(Model):
    """A checked plan.

    Attributes:
        command: What stands after `simrank run` or `torchrun`: options, the program and its
            arguments. `{tp}` is replaced by the value of `tp`.
        clusters: Names of built-in clusters, or paths of files.
        parameters: For each parameter its values, also those of `layouts`. `nnodes` and
            `nproc_per_node` are passed as torchrun's options, too.
        derived: Further values by name: expressions of parameters, `num_ranks` and `cluster`.
        where: An expression that is false for combinations to leave out.
        tokens_per_step: How many tokens all ranks together train on in a step: an expression.
        num_combinations: How many there are, with those that are left out.
        cells: The runs: clusters x parameters x layouts, the last parameter running fastest.
        folder: Where the command runs: that of the file.
        source: Where it was written, for messages.
    """

    command: str
    clusters: tuple[str, ...]
    parameters: Mapping[str, tuple[Any, ...]]
    derived: Mapping[str, str]
    where: str | None
    tokens_per_step: str | None
    num_combinations: int
    cells: tuple[PlanCell, ...]
    folder: Path
    source: Source


def load_plan(path: str | Path) -> PlanConfig:
    """Read and check a plan.

    Raises:
        ConfigError: The file is wrong, or an expression or the command names what is unknown, or
            no combination is left.
    """
    source = read_yaml(path)
    keys = validate(_Keys, source)
    key = cluster_key(source)
    _check_used(source, keys)
    clusters = dict(_clusters(source, key))
    count = len(clusters) * prod(map(len, keys.parameters.values())) * len(keys.layouts)
    if count > MAX_RUNS:
        expected = f"at most {MAX_RUNS} combinations"
        raise ConfigError(source.problem(("parameters",), expected, f"{count}"))
    cells = tuple(_cells(source, keys, clusters))
    if not cells:
        expected = f"an expression that is true for some of {count} combinations"
        raise ConfigError(source.problem(("where",), expected, str(keys.where)))
    return PlanConfig.model_construct(
        command=keys.command,
        clusters=tuple(clusters),
        parameters={**keys.parameters, **_values_of(keys.layouts)},
        derived=keys.derived,
        where=keys.where,
        tokens_per_step=keys.tokens_per_step,
        num_combinations=count,
        cells=cells,
        folder=(source.path or Path()).absolute().parent,
        source=source,
    )


def is_plan(data: object) -> bool:
    """Return whether the data of a YAML file are a plan: it names a command."""
    return isinstance(data, Mapping) and "command" in data


def _clusters(source: Source, key: str) -> Iterator[tuple[str, ClusterConfig]]:
    """Yield the clusters by name or absolute path, as `simrank run --cluster` takes them."""
    assert isinstance(source.data, Mapping)
    listed = source.data[key]
    if key == "clusters" and (not isinstance(listed, list | tuple) or not listed):
        got = source.describe((key,), listed) if listed else "nothing"
        raise ConfigError(source.problem((key,), "a list of clusters", got))
    for index, word in enumerate(listed if key == "clusters" else [listed]):
        key_path = (key, index) if key == "clusters" else (key,)
        if not isinstance(word, str):
            expected = "the name of a cluster, or the path of its file"
            to_fix = "change a key by `--set KEY=VALUE` in the command, and nodes by `nnodes`"
            got = source.describe(key_path, word)
            raise ConfigError(source.problem(key_path, expected, got, to_fix))
        path = located("clusters", word, source, key_path)
        name = word if word in builtin_names("clusters") else os.path.normpath(path.absolute())
        yield name, read_cluster(path)


def _cells(
    source: Source, keys: _Keys, clusters: Mapping[str, ClusterConfig]
) -> Iterator[PlanCell]:
    """Yield the runs that `where` leaves."""

    @cache
    def sized(name: str, nodes: int | None) -> ClusterConfig:
        key_path = ("parameters", NODES)
        found = clusters[name]
        return found if nodes is None else with_nodes(found, nodes, source, key_path)

    grid = product(*keys.parameters.values())
    for name, items, layout in product(clusters, grid, keys.layouts):
        chosen = {**dict(zip(keys.parameters, items, strict=True)), **layout}
        config = sized(name, chosen.get(NODES))
        values = _values(source, keys, (Path(name).stem, config), chosen)
        if keys.where is None or _evaluated(source, ("where",), keys.where, values):
            tokens = _tokens(source, keys, values)
            words = _words(source, keys.command, values)
            at = _program_at(words)
            _check_options(source, words[:at])
            memory_bytes = _memory_bytes(source, words[:at], config)
            yield PlanCell(
                name, config, chosen, values, tokens, words[:at], words[at:], memory_bytes
            )


def _values_of(layouts: Sequence[Mapping[str, Any]]) -> dict[str, tuple[Any, ...]]:
    """Return the distinct values of each parameter of layouts."""
    return {name: tuple(dict.fromkeys(each[name] for each in layouts)) for name in layouts[0]}


def _check_used(source: Source, keys: _Keys) -> None:
    """Raise ConfigError for a name without values, a parameter that changes no run or is twice."""
    known = {*keys.parameters, *keys.layouts[0], *keys.derived, CLUSTER, NODES, NUM_RANKS}
    _check_named(source, keys.command, sorted(known))
    texts = [keys.command, keys.where or "", keys.tokens_per_step or "", *keys.derived.values()]
    named = set(re.findall(r"\w+", " ".join(texts))) | {NODES, RANKS_PER_NODE}
    places: list[tuple[str, KeyPath]] = [(name, ("parameters", name)) for name in keys.parameters]
    for name, key_path in places + [(name, ("layouts", 0, name)) for name in keys.layouts[0]]:
        if name not in named:
            expected = "a name that the command or an expression uses"
            near = closest(name, (NODES, RANKS_PER_NODE))
            to_fix = f"write `{near}`" if near else f"write `{{{name}}}` in the command"
            raise ConfigError(source.problem(key_path, expected, name, to_fix))
    for name in keys.layouts[0].keys() & keys.parameters.keys():
        expected = "a parameter under `parameters` or `layouts`"
        raise ConfigError(source.problem(("layouts", 0, name), expected, "both"))


def _program_at(words: Sequence[str]) -> int:
    """Return the index of the program's first word, a Python file or `-m`; 0 if there is none."""
    return next((at for at, word in enumerate(words) if word == "-m" or word.endswith(".py")), 0)


def _check_options(source: Source, options: Sequence[str]) -> None:
    """Raise ConfigError for options that the plan gives itself."""
    for word in options:
        name = word.partition("=")[0].replace("_", "-")
        if name in _OWN_OPTIONS:
            home = _OWN_OPTIONS[name]
            expected = "a command without this option, which the plan gives"
            to_fix = f"write it as {home}" if home else "leave it out"
            raise ConfigError(source.problem(("command",), expected, word, to_fix))


def _memory_bytes(source: Source, options: Sequence[str], config: ClusterConfig) -> int:
    """Return the memory of a device, also where the command sets it."""
    found = config.device.memory_bytes
    for option, following in pairwise([*options, ""]):
        pair = following if option == "--set" else option.removeprefix("--set=")
        key, _, text = pair.partition("=")
        if option.startswith("--set") and key in ("memory", "device.memory"):
            try:
                found = parse_size(text)
            except ValueError as error:
                raise ConfigError(source.problem(("command",), str(error), pair)) from None
    return found


def _values(
    source: Source, keys: _Keys, cluster: tuple[str, ClusterConfig], chosen: Mapping[str, Any]
) -> dict[str, Any]:
    """Return everything that expressions and the command may name."""
    name, config = cluster
    per_node = config.num_devices // config.nodes
    num_ranks = config.nodes * chosen.get(RANKS_PER_NODE, per_node)
    if num_ranks > config.num_devices:
        expected = f"at most {per_node}, the devices of a node of {config.name}"
        got = f"{chosen[RANKS_PER_NODE]}"
        raise ConfigError(source.problem(("parameters", RANKS_PER_NODE), expected, got))
    values = {CLUSTER: name, NODES: config.nodes, **chosen, NUM_RANKS: num_ranks}
    for derived, text in keys.derived.items():
        values[derived] = _evaluated(source, ("derived", derived), text, values)
    return values


def _tokens(source: Source, keys: _Keys, values: Mapping[str, Any]) -> int | None:
    if keys.tokens_per_step is None:
        return None
    key_path = ("tokens_per_step",)
    tokens = _evaluated(source, key_path, keys.tokens_per_step, values)
    is_number = isinstance(tokens, int | float) and not isinstance(tokens, bool)
    if not is_number or tokens < 1 or tokens != int(tokens):
        expected = "an expression whose values are whole numbers from 1"
        raise ConfigError(source.problem(key_path, expected, f"{tokens} {_at(values)}"))
    return int(tokens)


def _words(source: Source, command: str, values: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the command's words, with values in place of their names."""
    try:
        words = shlex.split(_LAUNCHER.sub("", command.format_map(values), count=1))
    except ValueError as error:
        got = f"{command} ({error})"
        raise ConfigError(source.problem(("command",), _named_text(values), got)) from None
    return tuple(words)


def _check_named(source: Source, command: str, known: Sequence[str]) -> None:
    """Raise ConfigError for a name of the command that has no values."""
    expected = _named_text(known)
    try:
        for _, name, form, _ in Formatter().parse(command):
            if _UNFIT_FORM.search(form or ""):
                got, fix = f"{{{name}:{form}}}", f"write `{{{name}}}`"
                raise ConfigError(source.problem(("command",), expected, got, fix))
            if name is not None and name not in known:
                near = closest(name, known)
                fix = f"write `{{{near}}}`, " if near else ""
                fix += f"give {name} values under `parameters`, or double a brace that is one: {{{{"
                raise ConfigError(source.problem(("command",), expected, f"{{{name}}}", fix))
    except ValueError as error:
        raise ConfigError(source.problem(("command",), expected, f"{command} ({error})")) from None


def _named_text(known: Iterable[str]) -> str:
    return f"text with names in braces: {', '.join(known)}"


# ---- expressions: arithmetic of numbers, comparisons and a few functions ----

_MAX_LENGTH, _MAX_SHOWN = 1_000, 200  # Assumed: characters of an expression, and of a message.
_MAX_BITS = 256  # Assumed: of a whole number; no count of a plan needs more.
_MAX_DIGITS = 30  # Assumed: of `round`.
_UNFIT_FORM = re.compile(r"\{|\d{4}")  # Widths of a field `{tp:8}` have three digits at most.


def _power(base: Any, exponent: Any) -> Any:  # noqa: ANN401 - numbers of any type
    """Return a power, unless it is a whole number that would be too large to compute."""
    if isinstance(base, int) and isinstance(exponent, int):
        _check_bits((abs(base).bit_length() - 1) * exponent)
    return base**exponent


def _shifted(number: int, places: int) -> int:
    _check_bits(places)
    return number << places


def _rounded(number: Any, digits: int = 0) -> Any:  # noqa: ANN401 - as `round`
    if abs(digits) > _MAX_DIGITS:
        raise ValueError(f"expected at most {_MAX_DIGITS} digits, got {digits}")
    return round(number, digits) if digits else round(number)


def _check_bits(bits: int) -> None:
    if bits > _MAX_BITS:
        raise ValueError(f"a number is above 2**{_MAX_BITS}")


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": abs, "ceil": math.ceil, "floor": math.floor, "gcd": math.gcd, "int": int,
    "lcm": math.lcm, "log2": math.log2, "max": max, "min": min, "round": _rounded,
    "sqrt": math.sqrt,
}  # fmt: skip
_ARITHMETIC: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Pow: _power,
    ast.Div: operator.truediv, ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
    ast.LShift: _shifted, ast.RShift: operator.rshift, ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_, ast.BitXor: operator.xor,
    ast.UAdd: operator.pos, ast.USub: operator.neg, ast.Invert: operator.invert,
}  # fmt: skip
_COMPARISONS: dict[type[ast.AST], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Gt: operator.gt, ast.GtE: operator.ge, ast.In: lambda one, many: one in many,
    ast.NotIn: lambda one, many: one not in many,
}  # fmt: skip


def _evaluated(source: Source, key_path: KeyPath, text: str, values: Mapping[str, Any]) -> Any:  # noqa: ANN401 - as written
    """Return the value of an expression.

    Its syntax is Python's, but it has no attributes, subscripts, loops or texts that are computed,
    and its numbers are bounded: a plan from elsewhere is safe to list.
    """
    try:
        found = _value(_parsed(text), values)
        if isinstance(found, bool | int | float | str):
            return found
        why = "no number, text or truth value"
    except (SyntaxError, MemoryError):  # MemoryError: too many parentheses for Python's parser.
        why = "no expression of Python"
    except RecursionError:
        why = "nested too deeply"
    except OverflowError:
        why = f"a number is too large {_at(values)}"
    except (ArithmeticError, TypeError, ValueError) as error:
        why = f"{error} {_at(values)}"
    expected = f"an expression of {', '.join([*values, *_FUNCTIONS])}"
    shown = text if len(text) < _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."
    raise ConfigError(source.problem(key_path, expected, f"{shown} ({why})"))


@cache
def _parsed(text: str) -> ast.expr:
    if len(text) > _MAX_LENGTH:
        raise ValueError(f"expected at most {_MAX_LENGTH} characters, got {len(text)}")
    return ast.parse(text, "<expression>", "eval").body


def _value(node: ast.expr, values: Mapping[str, Any]) -> Any:  # noqa: ANN401 - as written
    """Return the value of a part of an expression, whose numbers are all checked."""
    kind = type(node)
    if kind not in _VALUES:
        raise ValueError(f"{ast.unparse(node)} is not supported: expected arithmetic")
    found = _VALUES[kind](node, values)
    if isinstance(found, int):
        _check_bits(found.bit_length())
    elif not isinstance(found, float | str | list):
        raise ValueError(f"{ast.unparse(node)} is not a number")
    elif isinstance(found, float) and not math.isfinite(found):
        raise OverflowError
    return found


def _constant(node: ast.Constant, _: Mapping[str, Any]) -> Any:  # noqa: ANN401 - as written
    return node.value


def _named(node: ast.Name, values: Mapping[str, Any]) -> Any:  # noqa: ANN401 - as written
    if node.id not in values:
        raise ValueError(f"name {node.id!r} is not defined")
    return values[node.id]


def _operation(node: ast.BinOp | ast.UnaryOp, values: Mapping[str, Any]) -> Any:  # noqa: ANN401 - of numbers
    parts = (node.left, node.right) if isinstance(node, ast.BinOp) else (node.operand,)
    operands = [_value(part, values) for part in parts]
    if isinstance(node.op, ast.Not):
        return not operands[0]
    for part, operand in zip(parts, operands, strict=True):
        if not isinstance(operand, int | float):
            raise ValueError(f"{ast.unparse(part)} is not a number")
    return _ARITHMETIC[type(node.op)](*operands)


def _junction(node: ast.BoolOp, values: Mapping[str, Any]) -> Any:  # noqa: ANN401 - as Python's
    is_or = isinstance(node.op, ast.Or)
    found: Any = not is_or
    for part in node.values:
        found = _value(part, values)
        if bool(found) == is_or:
            break
    return found


def _comparison(node: ast.Compare, values: Mapping[str, Any]) -> bool:
    left = _value(node.left, values)
    for kind, part in zip(node.ops, node.comparators, strict=True):
        if type(kind) not in _COMPARISONS:
            raise ValueError(f"{ast.unparse(node)} is not supported: compare by ==")
        right = _value(part, values)
        if not _COMPARISONS[type(kind)](left, right):
            return False
        left = right
    return True


def _choice(node: ast.IfExp, values: Mapping[str, Any]) -> Any:  # noqa: ANN401 - as written
    return _value(node.body if _value(node.test, values) else node.orelse, values)


def _called(node: ast.Call, values: Mapping[str, Any]) -> Any:  # noqa: ANN401 - of numbers
    if not isinstance(node.func, ast.Name) or node.func.id not in _FUNCTIONS:
        raise ValueError(f"{ast.unparse(node.func)} is not a function that is defined")
    if node.keywords:
        raise ValueError(f"{ast.unparse(node)} is not supported: write arguments without names")
    return _FUNCTIONS[node.func.id](*(_value(part, values) for part in node.args))


def _list(node: ast.List | ast.Tuple | ast.Set, values: Mapping[str, Any]) -> list[Any]:
    return [_value(part, values) for part in node.elts]


_VALUES: dict[type[ast.expr], Callable[[Any, Mapping[str, Any]], Any]] = {
    ast.Constant: _constant, ast.Name: _named, ast.BinOp: _operation, ast.UnaryOp: _operation,
    ast.BoolOp: _junction, ast.Compare: _comparison, ast.IfExp: _choice, ast.Call: _called,
    ast.List: _list, ast.Tuple: _list, ast.Set: _list,
}  # fmt: skip


def _at(values: Mapping[str, Any]) -> str:
    return "at " + ", ".join(f"{name}={value}" for name, value in values.items())
