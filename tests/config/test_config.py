"""Settings: recipes, overrides, and a sentence for every mistake."""

from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from msvq.config.resolve import read_config, read_recipe, recipe_names, resolve
from msvq.config.settings import OF_OPTIMISER, OTHER_OPTIMISERS, TrainSettings
from msvq.core.errors import BadInput
from msvq.core.schema import known_keys
from msvq.data.augment import STRONG, WEAK
from msvq.evaluate.linear import LinearSettings
from msvq.methods import METHODS

# The paper's momentum1, momentum2, teacher_temp and queue_size; its code's size, test_size and stem.
PAPER = {
    "cifar10": (0.99, 0.95, 0.04, 4096, 32, 32, "small"),
    "cifar100": (0.99, 0.93, 0.03, 4096, 32, 32, "small"),
    "stl10": (0.996, 0.99, 0.04, 16384, 64, 96, "small-pool"),
    "tinyimagenet": (0.996, 0.99, 0.04, 16384, 64, 64, "small-pool"),
}


@pytest.mark.parametrize("recipe", PAPER)
def test_recipes_hold_the_papers_table(recipe: str) -> None:
    s = resolve(recipe=recipe)
    m1, m2, teacher_temp, queue_size, size, test_size, stem = PAPER[recipe]
    assert s.method_name == "msvq"
    options = s.method_options
    assert (options["momentum1"], options["momentum2"]) == (m1, m2)
    assert (options["student_temp"], options["teacher_temp"]) == (0.1, teacher_temp)
    assert (options["queue_size"], options["bn_splits"], options["warm_start"]) == (queue_size, 8, 0.0)
    assert (s.data.source, s.data.size, s.data.test_size, s.backbone.stem) == (recipe, size, test_size, stem)
    assert (s.train.epochs, s.train.batch_size, s.train.warmup_epochs) == (200, 256, 5)
    assert (s.train.base_lr, s.train.weight_decay, s.train.decay_norm_and_bias) == (0.06, 5e-4, True)
    assert (s.evaluate.knn_k, s.evaluate.knn_temp, s.backbone.width) == (200, 0.1, 64)
    assert (s.augment.strong, s.augment.weak) == (STRONG, WEAK)


@pytest.mark.parametrize("recipe", recipe_names())
@pytest.mark.parametrize("method", METHODS)
def test_every_recipe_suits_every_method(recipe: str, method: str) -> None:
    settings = resolve(recipe=recipe, method=method)
    assert settings.method_options.keys() == METHODS[method].hyperparameters().keys()
    again = yaml.safe_load(settings.to_yaml())
    assert again["method"] == settings.method


def test_every_recipe_has_a_header_with_its_command() -> None:
    for name in recipe_names():
        text = (Path("src/msvq/config/recipes") / f"{name}.yaml").read_text()
        header = text[: text.index("\n\n")]
        assert all(line.startswith("#") for line in header.splitlines())
        for word in ("Command:", "Expected:", "Hours:"):
            assert word in header, (name, word)


def test_flags_then_overrides() -> None:
    settings = resolve(recipe="cifar10", epochs=7, overrides=["train.epochs=9", "augment.weak.flip=0.5"])
    assert settings.train.epochs == 9
    assert settings.augment.weak.flip == 0.5
    assert settings.augment.strong == STRONG


def test_another_method_gets_the_data_sets_values_for_it() -> None:
    assert resolve(recipe="cifar100", method="msvq-x5").method_options["momentum2"] == 0.93
    ressl = resolve(recipe="cifar100", method="ressl").method_options
    assert (ressl["momentum1"], ressl["teacher_temp"]) == (0.99, 0.04)
    by_set = resolve(recipe="cifar100", overrides=["method.name=ressl", "method.teacher_temp=0.05"])
    assert by_set.method_options["teacher_temp"] == 0.05


def test_another_optimiser_has_its_own_rate_and_decay(tmp_path: Path) -> None:
    for name, own in OTHER_OPTIMISERS.items():
        train = resolve(recipe="cifar10", overrides=[f"train.optimiser={name}"]).train
        assert train.model_dump(include=OF_OPTIMISER) == own
        assert (train.epochs, train.batch_size) == (200, 256)  # what was not about SGD stays
        named = ["train.base_lr=0.007", f"train.optimiser={name}", "train.decay_norm_and_bias=true"]
        train = resolve(recipe="cifar10", overrides=named).train
        assert (train.base_lr, train.weight_decay) == (0.007, own["weight_decay"]) and train.decay_norm_and_bias
    assert resolve(recipe="mini", overrides=["train.optimiser=sgd"]).train.base_lr == 0.36  # the recipe's optimiser
    mine = tmp_path / "mine.yaml"
    mine.write_text("train: {optimiser: lars, base_lr: 0.2}\n")
    assert resolve(recipe=mine).train.model_dump(include={"base_lr", "weight_decay"}) == {
        "base_lr": 0.2,
        "weight_decay": OTHER_OPTIMISERS["lars"]["weight_decay"],
    }
    assert resolve(recipe=mine, overrides=["train.optimiser=sgd"]).train.base_lr == 0.06


@pytest.mark.parametrize(("optimiser", "share"), [("sgd", 0.25), ("lars", 0.25), ("adamw", 1), ("muon", 1)])
def test_which_rates_follow_the_batch(optimiser: str, share: float) -> None:
    assert resolve(recipe="cifar10", overrides=[f"train.optimiser={optimiser}"]).train.peak_lr == pytest.approx(
        {"sgd": 0.06, **{name: own["base_lr"] for name, own in OTHER_OPTIMISERS.items()}}[optimiser]
    )
    settings = TrainSettings.parse({"optimiser": optimiser, "batch_size": 64})
    assert settings.peak_lr == pytest.approx(share * settings.base_lr)


def test_the_defaults_of_a_method_can_be_set() -> None:
    overrides = ["method_defaults.sce.temp=0.7"]
    assert resolve(recipe="cifar10", method="sce", overrides=overrides).method_options["temp"] == 0.7
    shared = resolve(recipe="demo", method="co2", overrides=["method_defaults.mocov2.momentum=0.5"])  # one YAML block
    assert shared.method_options["momentum"] == 0.99


def test_a_run_writes_down_its_own_method_alone_and_older_files_open(tmp_path: Path) -> None:
    written = resolve(recipe="cifar10", method="sce")
    text, path = written.to_yaml(), tmp_path / "config.yaml"
    assert "method_defaults" not in text and "mocov2" not in text
    path.write_text(text + "method_defaults: {simclr: {temp: 0.3}}\n")
    assert read_config(path) == resolve(recipe=path) == written
    assert resolve(recipe=path, method="simclr").method_options["temp"] == 0.3


def test_a_recipes_own_block_beats_its_defaults(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("method: {name: msv, momentum1: 0.5}\nmethod_defaults: {msv: {momentum1: 0.9, queue_size: 99}}\n")
    options = resolve(recipe=path).method_options
    assert (options["momentum1"], options["queue_size"]) == (0.5, 99)
    assert resolve(recipe=path, method="ressl").method_options["momentum1"] == 0.99


def test_without_a_recipe_the_data_sets_own_is_taken() -> None:
    assert resolve(data="patterns").method == resolve(recipe="demo").method
    for source in ("cifar100", "some/folder"):
        assert resolve(overrides=[f"data.source={source}"]) == resolve(data=source)


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["train.epoch=3"], r"unknown setting train 'epoch'; did you mean 'epochs'\?"),
        (["trian.epochs=3"], r"unknown setting 'trian'; did you mean 'train'\?"),
        (["method.momentum=0.9"], r"unknown setting method 'momentum'; did you mean 'momentum[12]'\?"),
        (["augment.weak.flop=1"], r"unknown setting augment.weak 'flop'; did you mean 'flip'\?"),
        (["train.epochs=many"], r"train.epochs: should be a valid integer.*'many'"),
        (["train.epochs=0"], r"train.epochs: should be greater than or equal to 1, not 0"),
        (["method.momentum1=1"], r"method.momentum1: should be less than 1, not 1"),
        (["method.momentum1=-0.1"], r"method.momentum1: should be greater than or equal to 0, not -0.1"),
        (["method.teacher_temp=0"], r"method.teacher_temp: should be greater than 0, not 0"),
        (["method.teacher_augmentation=medium"], r"method.teacher_augmentation: should be 'weak' or 'strong'"),
        (["train.precision=fp8"], r"train.precision: should be 'auto', 'fp32', 'bf16' or 'fp16', not 'fp8'"),
        (["augment.weak.crop_area=[0.5]"], r"^augment.weak.crop_area: has too few values: \[0.5\]$"),
        (["augment.weak.crop_area=[0.9, 0.1]"], r"^augment.weak: crop_area must be .*, not \(0.9, 0.1\)$"),
        (["augment.weak.flip=2"], r"augment.weak.flip: should be less than or equal to 1, not 2"),
        (["method.name=mvsq"], r"unknown method 'mvsq'; did you mean 'msvq'\?"),
        (["train.epochs"], r"--set takes key.path=value"),
        (["train.epochs.more=1"], r"'epochs' has no keys below it"),
        (["train=3"], r"'train' is a whole section"),
        (["method={name: foo}"], r"'method' is a whole section"),
        (["method.teacher_temp=.inf"], r"method.teacher_temp: should be a finite number"),
        (["method_defaults.msvk.temp=1"], r"unknown method in method_defaults 'msvk'"),
        (["train.base_lr=.nan"], r"train.base_lr: should be "),
        (["train.warmup_epochs=.inf"], r"train.warmup_epochs: should be a finite number"),
        (["train.seed=100000000000000000000"], r"train.seed: should be less than"),
        (["train.epochs=2024-13-01"], r"--set train.epochs: '2024-13-01' is not a value"),
        (["train.epochs=!!int abc"], r"--set train.epochs: '!!int abc' is not a value"),
        (["method_defaults.msvq=3"], r"method_defaults.msvq is a block of keys, not 3"),
        (["method.name=unmix", "method_defaults.mocov2=3"], r"method_defaults.mocov2 is a block of keys, not 3"),
        (["backbone.name=[a]"], r"unknown backbone"),
        (["train.optimiser=adam"], r"train.optimiser: should be 'sgd', 'adamw', 'lars' or 'muon', not 'adam'"),
        (["train.optimiser=null"], r"train.optimiser: should be 'sgd'.*, not None"),
        (["train.optimiser=[muon]"], r"train.optimiser: should be 'sgd'.*, not \['muon'\]"),
        (["train.optimiser=adamw", "train.base_lr=0.06"], r"^train: base_lr of adamw is at most 0.02 .*, not 0.06$"),
    ],
)
def test_a_bad_setting_is_named(overrides: list[str], sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence) as caught:
        resolve(recipe="demo", overrides=overrides)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("train: [1", "not valid YAML"),
        ("just words", "not a list of sections"),
        ("method: msvq", "are blocks of keys"),
        ("!!python/object/apply:os.system ['true']", "not valid YAML"),
        ("train: {epochs: 3}\nmodel: {}", "unknown setting 'model'"),
        ("train: {epochs: 2024-13-01}", "not valid YAML"),
        ("method_defaults: {msvq: 3}", "method_defaults.msvq is a block of keys"),
    ],
)
def test_a_bad_recipe_file_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(BadInput, match=sentence):
        resolve(recipe=path)


@pytest.mark.parametrize(
    ("values", "some"),
    [
        ({"epoch": 2}, {"epochs", "view"}),
        ({"view": {"flipp": 1}}, {"flip", "crop_area"}),
        ({"view": {"crop_area": ["x", 1.0]}}, set()),  # a list has no keys
    ],
)
def test_the_keys_beside_a_wrong_one_are_those_of_its_section(values: dict[str, object], some: set[str]) -> None:
    with pytest.raises(ValidationError) as caught:
        LinearSettings.model_validate(values)
    known = known_keys(caught.value, LinearSettings)
    assert some <= set(known) and bool(known) == bool(some)


def test_unknown_recipes() -> None:
    with pytest.raises(BadInput, match=r"unknown recipe 'cifar11'; did you mean 'cifar10"):
        read_recipe("cifar11")
    with pytest.raises(BadInput, match=r"there is no recipe file 'none\.yaml'"):
        read_recipe("none.yaml")


def test_no_is_a_word_of_mocos_though_yaml_reads_it_as_false() -> None:
    assert resolve(recipe="cifar10", method="mocov2", overrides=["method.symmetric=no"]).method["symmetric"] == "no"
    assert METHODS["unmix"].check_options({"base_options": {"symmetric": False}})["base_options"]["symmetric"] == "no"


@pytest.mark.parametrize("recipe", PAPER)
@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_the_data_sets_momentum_and_queue(recipe: str, method: str) -> None:
    momentum, queue_size = (0.996, 16384) if recipe in ("stl10", "tinyimagenet") else (0.99, 4096)
    options = resolve(recipe=recipe, method=method).method_options
    for block in (options, options.get("base_options", {})):
        assert block.get("momentum", momentum) == block.get("momentum1", momentum) == momentum
        assert block.get("queue_size", queue_size) == queue_size


@pytest.mark.parametrize(("epochs", "warmup"), [(10, 1.0), (20, 2.0), (100, 5.0), (400, 5.0)])
def test_warm_up_follows_the_length_that_is_named(epochs: int, warmup: float) -> None:
    assert resolve(recipe="cifar10", epochs=epochs).train.warmup_epochs == pytest.approx(warmup)
    named = resolve(recipe="cifar10", epochs=epochs, overrides=["train.warmup_epochs=7"])
    assert named.train.warmup_epochs == 7


def test_warm_up_follows_the_length_though_the_recipe_says_nothing_of_training(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("data: {source: patterns}\n")
    assert resolve(recipe=tmp_path / "mine.yaml", epochs=2).train.warmup_epochs == pytest.approx(0.2)


@pytest.mark.parametrize("recipe", [None, "cifar10"])
@pytest.mark.parametrize("length", ["train.epochs=40", "train.steps=9"])
def test_warm_up_of_a_run_that_goes_on_stays_unless_it_is_named(recipe: str | None, length: str) -> None:
    run = resolve(recipe="cifar10", epochs=20).model_dump(mode="json")
    assert resolve(run, recipe=recipe, overrides=[length]).train.warmup_epochs == 2
    assert resolve(run, recipe=recipe, overrides=[length, "train.warmup_epochs=7"]).train.warmup_epochs == 7
