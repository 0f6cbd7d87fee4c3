"""Settings: a recipe, then the command's flags, then `--set`; typed, complete, every bad key named."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from msvq.config.adapt import fill_from_method
from msvq.config.budget import BY_RECIPE, DEFAULT, RECIPE, WARMUP, parse_budget
from msvq.config.settings import OF_OPTIMISER, Settings, TrainSettings
from msvq.core.errors import BadInput, tell, unknown
from msvq.core.files import expanduser
from msvq.core.ordinary_files import read_ordinary
from msvq.core.schema import assign, load_yaml, parse_assignment
from msvq.core.user_code import is_user_code, must_be_named_explicitly
from msvq.data.sources import RECIPE_OF, is_path
from msvq.methods import METHODS
from msvq.methods.external import register_file
from msvq.model.backbones import LIBRARY, RESNETS, BackboneSettings, check_backbone, register_backbone
from msvq.model.hub import CONFIG, HUB, WEIGHTS, fetch_folder
from msvq.model.initial import guess_resnet, read_weights
from msvq.model.libraries import RANDOM, is_library
from msvq.model.pretrained import find_pretrained

MAX_DEPTH = 8  # blocks within blocks of a recipe
LENGTH = ("train.epochs", "train.steps")  # of a run

SYNONYMS = {"lr": "train.base_lr", "learning_rate": "train.base_lr", "model": "backbone.name"}  # what others call it


@dataclass(frozen=True)
class Flags:
    """What a command was told of the settings; None: not told."""

    recipe: str | Path | None = None
    data: str | Path | None = None
    data_root: str | Path | None = None
    method: str | None = None
    backbone: str | None = None
    epochs: int | None = None
    budget: str | None = None  # a time, such as 10m
    overrides: Sequence[str] = ()  # key.path=value
    device: str | None = None
    precision: str | None = None
    init: str | Path | None = None
    seed: int | None = None
    compile: bool | None = None

    @cached_property
    def seconds(self) -> float | None:
        """The time there is for a new run; None: its length is given otherwise. A folder always has one."""
        told = self._assignments()
        length = [key for key in LENGTH if key in told]
        if self.budget is not None and length:
            raise BadInput(f"--budget and {length[0]} both say how long a run is; give one of them")
        folder = self.recipe is None and is_path(str(told.get("data.source") or "patterns"))
        timed = folder or self.recipe == RECIPE
        text = self.budget if self.budget is not None else DEFAULT if timed and not length else None
        return None if text is None else parse_budget(text)

    def length_note(self) -> list[str]:
        """What to say where nobody said how long."""
        unsaid = self.seconds is not None and self.budget is None
        return [f"note: no length was given, so it takes {DEFAULT}; --budget 1h, say, learns more"] if unsaid else []

    def settings(self, base: Mapping[str, Any] | None = None) -> Settings:
        """The complete settings that they ask for. `base`: plain values instead of a recipe, unless one is named."""
        assignments = self._assignments()
        goes_on = base is not None and (self.recipe is None or self.seconds is not None)  # by what a budget has fitted
        if base is not None and goes_on:
            values = {key: _unshared(value) for key, value in base.items()}
        else:
            source = str(assignments.get("data.source") or "patterns")
            own = RECIPE if self.seconds is not None else RECIPE_OF.get(source, "folder")
            values = read_recipe(self.recipe if self.recipe is not None else own)
            if self.recipe is None and own == RECIPE and "backbone.init" in assignments:
                values["backbone"] = {"whiten": True}  # weights are of a standard network, unless another is named
        name = assignments.pop("method.name", self.method)
        for path in [path for path in assignments if path.startswith("method_defaults.")]:
            assign(values, path, assignments.pop(path), whole=True)
        _choose_method(values, name)
        network = assignments.pop("backbone.name", self.backbone)
        if network is None and "backbone.init" in assignments:
            network = _take_network(values, str(assignments["backbone.init"]))
        _choose_backbone(values, network)
        _choose_optimiser(values, assignments.get("train.optimiser"))
        from_recipe = not goes_on
        begun = str(values["backbone"].get("init"))
        remote = begun == LIBRARY or is_library(begun) or begun.startswith(HUB)
        if from_recipe and remote and "backbone.init" not in assignments:
            raise BadInput(
                f"the recipe starts from weights of the network; to allow that, name it yourself: --init {begun}"
            )
        _choose_length(values, assignments, base)
        _assign_all(values, assignments)
        settings = Settings.parse(values)
        check_backbone(settings.backbone)
        return fill_from_method(settings)

    def _assignments(self) -> dict[str, Any]:
        """What they set, by key.path; the overrides have the last word."""
        if isinstance(self.overrides, str):
            raise BadInput(f"overrides is a list of such strings, not one of them: [{self.overrides!r}]")
        told = {f"train.{key}": getattr(self, key) for key in ("epochs", "seed", "device", "precision", "compile")}
        told |= {"data.source": self.data, "data.root": self.data_root, "backbone.init": self.init}
        plain = {path: str(value) if isinstance(value, Path) else value for path, value in told.items()}
        return {path: value for path, value in plain.items() if value is not None} | dict(
            map(parse_assignment, self.overrides)
        )

    @property
    def named(self) -> set[str]:
        """What a budget must leave as it is, by section.key: what a command names, and the recipe that it names."""
        chosen = {"backbone.name"} if self.backbone is not None else set()
        chosen |= BY_RECIPE if self.recipe not in (None, RECIPE) else set()
        return chosen | self._assignments().keys()

    def kept(self, settings: Settings) -> list[str] | None:
        """What was named of the settings, where the rest is fitted to one's own pictures; None: nothing is fitted."""
        fitted = self.recipe is None and is_path(settings.data.source)
        return [text.partition("=")[0].strip() for text in self.overrides] if fitted else None


def read_config(path: Path) -> Settings:
    """The complete settings that a run has written. Nothing that they name is loaded or run."""
    return Settings.parse(read_recipe(path))


def recipe_names() -> list[str]:
    """The recipes that come with the package."""
    return sorted(
        f.name.removesuffix(".yaml") for f in files("msvq.config.recipes").iterdir() if f.name.endswith("yaml")
    )


def read_recipe(recipe: str | Path) -> dict[str, Any]:
    """A recipe by name or file, as plain values."""
    path = Path(recipe)
    if path.suffix in (".yaml", ".yml") or path.is_file():
        if not path.is_file():
            raise BadInput(f"there is no recipe file {str(path)!r}; recipes by name: {', '.join(recipe_names())}")
        try:
            text = read_ordinary(path).decode()
        except UnicodeDecodeError:
            raise BadInput(f"recipe {str(path)!r} is not a text file, or damaged") from None
    elif str(recipe) in recipe_names():
        text = (files("msvq.config.recipes") / f"{recipe}.yaml").read_text(encoding="utf-8")
    else:
        raise unknown("recipe", str(recipe), recipe_names())
    try:
        values = load_yaml(text)
    except RecursionError:
        raise BadInput(f"recipe {str(recipe)!r} is nested too deeply to be one") from None
    except (yaml.YAMLError, ValueError) as error:  # a ValueError: what looks like a date and is none, for one
        place = getattr(error, "problem_mark", None)
        raise BadInput(
            f"recipe {str(recipe)!r} is not valid YAML{f' in line {place.line + 1}' if place else ''}"
        ) from None
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise BadInput(f"recipe {str(recipe)!r} is not a list of sections such as 'train:'")
    return {key: _unshared(value) for key, value in values.items()}


def _unshared(value: Any, depth: int = 0) -> Any:
    """A copy in which two YAML aliases of one block are two blocks, so that --set changes one of them."""
    if depth > MAX_DEPTH:  # aliases of aliases would grow without end
        raise BadInput("a recipe's settings are nested too deeply")
    return {key: _unshared(inner, depth + 1) for key, inner in value.items()} if isinstance(value, dict) else value


def resolve(base: Mapping[str, Any] | None = None, **flags: Any) -> Settings:
    """The complete settings that `Flags` of these names ask for."""
    return Flags(**flags).settings(base)


def nearest_setting(name: str) -> str | None:
    """The setting, as section.key, that somebody may mean who gives a name without its section, or another word."""
    keys = {
        key: f"{section}.{key}"
        for section, field in Settings.model_fields.items()
        for key in getattr(field.annotation, "model_fields", ())
    }
    word = name.strip("-").replace("-", "_").lower()
    near = get_close_matches(word, keys, n=1, cutoff=0.75)
    return SYNONYMS.get(word) or (keys[near[0]] if near else None)


def _choose_method(values: dict[str, Any], name: str | None) -> None:
    """Make `method:` the chosen method's block: the recipe's values for it, then its own block if it has one."""
    block = values.get("method") or {"name": "msvq"}
    defaults = values.get("method_defaults") or {}
    if not isinstance(block, dict) or not isinstance(defaults, dict):
        raise BadInput("'method' and 'method_defaults' of a recipe are blocks of keys")
    for key, options in defaults.items():
        if options is not None and not isinstance(options, dict):
            raise BadInput(f"method_defaults.{key} is a block of keys, not {tell(options)}")
        if key not in METHODS and not is_user_code(str(key)):
            raise unknown("method in method_defaults", str(key), METHODS)
    own = block.get("name", "msvq")
    chosen = str(own if name is None else name)
    if name is not None and is_user_code(chosen):
        register_file(chosen)
    if chosen not in METHODS:
        if is_user_code(chosen):
            raise must_be_named_explicitly("method", chosen)
        raise unknown("method", chosen, METHODS)
    values["method"] = _unshared({**(defaults.get(chosen) or {}), **(block if chosen == own else {}), "name": chosen})


def _take_network(values: dict[str, Any], start: str) -> str | None:
    """The network that weights to start from are of, by their name or what lies beside them; None: they do not tell."""
    if is_library(start):
        return start.removesuffix(RANDOM)
    place = fetch_folder(start.removeprefix(HUB)) if start.startswith(HUB) else expanduser(start)
    folder, recipe, network = _folder_of(place), values.get("backbone"), {}
    recipe = recipe if isinstance(recipe, dict) else {}
    if (folder / "config.yaml").is_file():
        network = read_config(folder / "config.yaml").backbone.model_dump(mode="json", exclude={"init"})
    elif (folder / CONFIG).is_file():
        with suppress(ValueError, TypeError, KeyError, RecursionError):  # whoever loads it tells what is wrong
            config = json.loads((folder / CONFIG).read_bytes())
            if "backbone" not in config:
                return f"timm:{config['architecture']}"
            network = dict(config["backbone"])
    elif place.is_file():
        with suppress(BadInput):  # of another network, or no weights at all
            network = _take_resnet(place, recipe)
    elif (listed := find_pretrained(start)) is not None and listed.encoder is not None:
        network = {**listed.encoder["backbone"], "init": None}
    if network:
        values["backbone"] = network | ({"whiten": True} if recipe.get("whiten") else {})  # which is fitted anew
    return None


def _folder_of(place: Path) -> Path:
    """The run or the export that a file of weights lies in; of anything else, the place itself."""
    run = place.parent.parent
    if place.parent.name == "checkpoints" and (run / "environment.json").is_file():  # other code has such folders too
        return run
    return place.parent if place.name in ("encoder.safetensors", WEIGHTS) else place


def _take_resnet(file: Path, recipe: Mapping[str, Any]) -> dict[str, Any]:
    """The ResNet that weights in a file are of; none if the recipe has a network of another kind."""
    if recipe.get("name", BackboneSettings().name) not in RESNETS:
        return {}
    network = guess_resnet(str(file), read_weights(file)).model_dump(mode="json", exclude={"init"})
    if (network["stem"], recipe.get("stem")) == ("small", "small-pool"):  # a max-pool has no weights that tell of it
        network["stem"] = "small-pool"
    return network


def _choose_backbone(values: dict[str, Any], name: str | None) -> None:
    """Put the chosen backbone into its block; a recipe's width, stem and weights to start from are of another."""
    block = values.setdefault("backbone", {})
    if not isinstance(block, dict):
        raise BadInput("'backbone' of a recipe is a block of keys")
    own = block.get("name", BackboneSettings().name)
    if name is None:
        if is_user_code(str(own)):
            raise must_be_named_explicitly("backbone", str(own))
        return
    name = str(name)
    if is_user_code(name):  # it may be the same code in another place
        register_backbone(name)
    elif name != own:
        block.pop("init", None)
    if name not in RESNETS:
        block.pop("width", None)
        block.pop("stem", None)
    block["name"] = name


def _choose_length(values: dict[str, Any], assignments: Mapping[str, Any], run: Mapping[str, Any] | None) -> None:
    """Epochs that are named stand instead of a recipe's or a run's steps.

    By a length that is named, warm-up is a tenth of a new run at most (of steps, once it is known how many an epoch
    has), and of a `run` that goes on it stays.
    """
    block, epochs, steps = values.setdefault("train", {}), *(assignments.get(key) for key in LENGTH)
    if epochs is not None and steps is not None:
        raise BadInput("train.epochs and train.steps both say how long a run is; give one of them")
    if not isinstance(block, dict) or (epochs is None and steps is None):
        return
    if epochs is not None:
        block.pop("steps", None)
    warmup = block.get("warmup_epochs", TrainSettings().warmup_epochs)
    if run is not None:
        block["warmup_epochs"] = run["train"]["warmup_epochs"]
    elif isinstance(epochs, int) and epochs > 0 and isinstance(warmup, int | float):
        block["warmup_epochs"] = min(warmup, WARMUP * epochs)


def _choose_optimiser(values: dict[str, Any], name: Any) -> None:
    """Drop the rate and the decay of a recipe for another optimiser: the chosen one has its own."""
    block = values.get("train")
    if isinstance(block, dict) and name not in (None, block.get("optimiser", TrainSettings().optimiser)):
        for key in OF_OPTIMISER:
            block.pop(key, None)


def _assign_all(values: dict[str, Any], assignments: Mapping[str, Any]) -> None:
    """Assign; a method that the chosen one wraps gets the recipe's values for it where nothing else is told."""
    block, defaults = values["method"], values.get("method_defaults") or {}
    name, options = METHODS[block["name"]].inner_keys or ("", "")
    if assignments.get(f"method.{name}", block.get(name)) != block.get(name):
        block.pop(options, None)  # they were another inner method's
    for path, value in assignments.items():
        if "." not in path and path not in Settings.model_fields and (meant := nearest_setting(path)):
            raise BadInput(f"--set {path}: a setting is named with its section; did you mean {meant}?")
        assign(values, path, value, whole=True)
    inner, told = block.get(name), block.get(options) or {}
    if isinstance(inner, str) and isinstance(told, dict) and defaults.get(inner):
        block[options] = {**defaults[inner], **told}
