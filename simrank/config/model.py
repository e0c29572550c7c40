"""The base of all configuration models, and pydantic's complaints in simrank's words."""

from collections.abc import Iterator
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import PydanticCustomError

from simrank.config.quantity import choice_text, hint
from simrank.config.yaml_source import KeyPath, Source
from simrank.errors import ConfigError, ConfigProblem


class Model(BaseModel):
    """A frozen part of a configuration that knows all its keys."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", arbitrary_types_allowed=True, validate_default=False
    )

    @classmethod
    def keys(cls) -> tuple[str, ...]:
        """Return the keys as written in YAML."""
        return tuple(field.alias or name for name, field in cls.model_fields.items())


ModelT = TypeVar("ModelT", bound=Model)


def validate(model: type[ModelT], source: Source, prefix: KeyPath = ()) -> ModelT:
    """Return the model for a source's data.

    Args:
        model: The class of the model.
        source: The data and where it stands.
        prefix: The key path of the part of the source to read.

    Raises:
        ConfigError: With every problem, in file order.
    """
    data = source.data
    for part in prefix:
        data = data[part]  # type: ignore[index]
    try:
        return model.model_validate(data)
    except ValidationError as error:
        errors = error.errors(include_url=False)
        problems = [_problem(model, source, prefix, dict(facts)) for facts in errors]
        raise ConfigError(*in_file_order(problems)) from None


def custom_problem(source: Source, key_path: KeyPath, error: PydanticCustomError) -> ConfigProblem:
    """Return the problem behind an error of `simrank.config.quantity.reject`.

    Args:
        source: Where the value was read.
        key_path: The key whose value was rejected.
        error: The error.
    """
    context = error.context or {}
    path = (*key_path, *context["sub"])
    got = context["got"] or source.describe(path, _at(source.data, path))
    return source.problem(path, context["expected"], got, context["to_fix"])


def in_file_order(problems: list[ConfigProblem]) -> list[ConfigProblem]:
    """Return problems sorted by line, stable within a line."""
    return sorted(problems, key=lambda problem: problem.line or 0)


def _problem(
    model: type[Model], source: Source, prefix: KeyPath, facts: dict[str, Any]
) -> ConfigProblem:
    """Return one of pydantic's errors as a problem with file, line and key path."""
    context = facts.get("ctx", {})
    loc: KeyPath = tuple(part for part in facts["loc"] if part != "[key]")
    path = (*prefix, *loc, *context.get("sub", ()))
    kind = facts["type"]
    if kind == "missing":
        expected = "this key to be given"
        return source.problem(path, expected, "nothing", f"add `{loc[-1]}: ...`")
    if kind == "extra_forbidden":
        keys = _keys_at(model, loc[:-1])
        to_fix = hint(str(loc[-1]), keys)
        return source.problem(path, choice_text(keys), f"the unknown key `{loc[-1]}`", to_fix)
    if kind == "simrank":
        value = _at(facts["input"], context["sub"])
        got = context["got"] or source.describe(path, value)
        return source.problem(path, context["expected"], got, context["to_fix"])
    expected = _KINDS.get(kind, str(facts["msg"]))
    return source.problem(path, expected, source.describe(path, facts["input"]))


_KINDS = {
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "dict_type": "a mapping",
    "list_type": "a list",
    "tuple_type": "a list",
}


def _at(data: object, sub: KeyPath) -> object:
    """Return the part of some data at a key path."""
    for part in sub:
        if not (isinstance(data, list | tuple) or (isinstance(data, dict) and part in data)):
            return None
        data = data[part]  # type: ignore[index]
    return data


def _keys_at(model: type[Model], loc: KeyPath) -> tuple[str, ...]:
    """Return the keys of the model that stands at a location below another."""
    for part in loc:
        if isinstance(part, int):
            continue
        for name, field in model.model_fields.items():
            if part in (name, field.alias):
                model = next(_models_in(field.annotation), model)
    return model.keys()


def _models_in(annotation: object) -> Iterator[type[Model]]:
    """Yield the models inside a type such as `tuple[LinkConfig, ...] | None`."""
    if isinstance(annotation, type) and issubclass(annotation, Model):
        yield annotation
    for part in get_args(annotation):
        yield from _models_in(part)
