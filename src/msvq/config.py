"""Settings: a recipe, then the command's flags, then `--set`; typed, complete, every bad key named."""

from collections.abc import Iterable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml
from pydantic import ConfigDict, Field, ValidationError, create_model
from pydantic_core import ErrorDetails

from msvq.data.augment import STRONG, WEAK, ViewSettings
from msvq.data.sources import RECIPE_OF, DataSettings
from msvq.errors import BadInput, unknown
from msvq.evaluate.knn import EvaluateSettings
from msvq.methods import METHODS
from msvq.model.backbones import BackboneSettings
from msvq.settings import Section
from msvq.train.trainer import TrainSettings


class AugmentSettings(Section):
    """The two kinds of view (methods.md 1.2)."""

    strong: ViewSettings = STRONG
    weak: ViewSettings = WEAK


class Settings(Section):
    """Everything that decides a run. `method` is checked against the method's constructor."""

    data: DataSettings = DataSettings()
    augment: AugmentSettings = AugmentSettings()
    backbone: BackboneSettings = BackboneSettings()
    method: dict[str, Any] = Field(default={"name": "msvq"})
    method_defaults: dict[str, dict[str, Any]] = Field(default={}, repr=False)
    train: TrainSettings = TrainSettings()
    evaluate: EvaluateSettings = EvaluateSettings()

    @property
    def method_name(self) -> str:
        """The method's name in METHODS."""
        return str(self.method["name"])

    @property
    def method_options(self) -> dict[str, Any]:
        """The method's keywords."""
        return {key: value for key, value in self.method.items() if key != "name"}

    def to_yaml(self) -> str:
        """The complete settings as a recipe that repeats the run."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False)


def recipe_names() -> list[str]:
    """The recipes that come with the package."""
    return sorted(f.name.removesuffix(".yaml") for f in files("msvq.recipes").iterdir() if f.name.endswith("yaml"))


def read_recipe(recipe: str | Path) -> dict[str, Any]:
    """A recipe by name or file, as plain values."""
    path = Path(recipe)
    if path.suffix in (".yaml", ".yml") or path.is_file():
        if not path.is_file():
            raise BadInput(f"there is no recipe file {str(path)!r}; recipes by name: {', '.join(recipe_names())}")
        text = path.read_text(encoding="utf-8")
    elif str(recipe) in recipe_names():
        text = (files("msvq.recipes") / f"{recipe}.yaml").read_text(encoding="utf-8")
    else:
        raise unknown("recipe", str(recipe), recipe_names())
    try:
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        place = getattr(error, "problem_mark", None)
        raise BadInput(
            f"recipe {str(recipe)!r} is not valid YAML{f' in line {place.line + 1}' if place else ''}"
        ) from None
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise BadInput(f"recipe {str(recipe)!r} is not a list of sections such as 'train:'")
    return values


def resolve(
    *,
    recipe: str | Path | None = None,
    data: str | None = None,
    method: str | None = None,
    overrides: Iterable[str] = (),
    **train: Any,
) -> Settings:
    """Complete settings from a recipe, the named flags, `train` values that are not None, and `--set`."""
    values = read_recipe(recipe if recipe is not None else RECIPE_OF.get(data or "patterns", "demo"))
    flags = {f"train.{key}": value for key, value in train.items() if value is not None}
    if data is not None:
        flags["data.source"] = data
    assignments = {**flags, **dict(map(_parse_assignment, overrides))}
    name = assignments.pop("method.name", method)
    _choose_method(values, name)
    for path, value in assignments.items():
        _assign(values, path, value)
    try:
        settings = Settings.model_validate(values)
        return settings.model_copy(update={"method": _complete_method(settings)})
    except ValidationError as error:
        raise BadInput(_sentence(error.errors()[0])) from None


def _parse_assignment(text: str) -> tuple[str, Any]:
    path, equals, value = text.partition("=")
    if not equals or not path.strip():
        raise BadInput(f"--set takes key.path=value, such as train.epochs=20, not {text!r}")
    try:
        return path.strip(), yaml.safe_load(value)
    except yaml.YAMLError:
        raise BadInput(f"--set {path.strip()}: {value!r} is not a value") from None


def _assign(values: dict[str, Any], path: str, value: Any) -> None:
    *parents, key = path.split(".")
    for parent in parents:
        values = values.setdefault(parent, {})
        if not isinstance(values, dict):
            raise BadInput(f"--set {path}: {parent!r} has no keys below it")
    values[key] = value


def _choose_method(values: dict[str, Any], name: str | None) -> None:
    """Make `method:` the chosen method's block: the recipe's values for it, then its own block if it has one."""
    block = values.get("method") or {"name": "msvq"}
    defaults = values.get("method_defaults") or {}
    if not isinstance(block, dict) or not isinstance(defaults, dict):
        raise BadInput("'method' and 'method_defaults' of a recipe are blocks of keys")
    own = block.get("name", "msvq")
    chosen = str(own if name is None else name)
    if chosen not in METHODS:
        raise unknown("method", chosen, METHODS)
    values["method"] = {**(defaults.get(chosen) or {}), **(block if chosen == own else {}), "name": chosen}


def _complete_method(settings: Settings) -> dict[str, Any]:
    """The method's block with every keyword of its constructor, types and ranges checked."""
    keywords = METHODS[settings.method_name].hyperparameters()
    schema = create_model("method", __config__=ConfigDict(extra="forbid"), **keywords)  # type: ignore[call-overload]
    try:
        checked = schema.model_validate(settings.method_options)
    except ValidationError as error:
        details = error.errors()[0]
        details["loc"] = ("method", *details["loc"])
        raise BadInput(_sentence(details, known=keywords)) from None
    return {"name": settings.method_name, **checked.model_dump(mode="json")}


def _sentence(error: ErrorDetails, known: Mapping[str, Any] | None = None) -> str:
    """One validation error in plain words."""
    path = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        *parents, key = (str(part) for part in error["loc"])
        names = known if known is not None else _fields(parents)
        return str(unknown(f"setting {'.'.join(parents)}" if parents else "setting", key, names))
    message = error["msg"].removeprefix("Input ").removeprefix("Value error, ")
    return f"{path}: {message}, not {error['input']!r}"


def _fields(parents: Iterable[str]) -> Iterable[str]:
    model: Any = Settings
    for parent in parents:
        model = model.model_fields[parent].annotation
    return list(model.model_fields)
