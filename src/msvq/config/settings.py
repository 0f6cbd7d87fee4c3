"""Everything that decides a run, typed and frozen."""

import re
from typing import Annotated, Any, Literal, Self

import yaml
from annotated_types import Ge, Gt, Lt
from pydantic import AfterValidator, Field, model_validator

from msvq.core.runtime import Precision
from msvq.core.schema import MayChange, Section
from msvq.data.augment import STRONG, WEAK, ViewSettings
from msvq.data.sources import DataSettings
from msvq.evaluate.diagnostics.health import AnalyzeSettings
from msvq.evaluate.knn import EvaluateSettings
from msvq.model.backbones import BackboneSettings


def _rising(schedule: list[tuple[float, int]]) -> list[tuple[float, int]]:
    shares = [share for share, _ in schedule]
    if not schedule or shares[0] != 0 or shares != sorted(set(shares)) or shares[-1] >= 1:
        raise ValueError("give [share of the run, pixels] pairs whose shares rise from 0.0 and stay below 1")
    return schedule


Schedule = Annotated[list[tuple[float, Annotated[int, Ge(8)]]], AfterValidator(_rising)]


def parse_time(text: str) -> float:
    """Seconds of a time such as 30s, 5m or 2h; 0 of anything else."""
    found = re.fullmatch(r"(\d{1,15}(?:\.\d{1,15})?)\s*([smh])", text.strip())
    return float(found[1]) * {"s": 1, "m": 60, "h": 3600}[found[2]] if found else 0.0


def parse_save_interval(every: int | str) -> tuple[int | None, float]:
    """(steps, 0.0) or (None, seconds)."""
    text = str(every).strip()
    if re.fullmatch(r"\d{1,15}", text) and int(text) > 0:
        return int(text), 0.0
    if (seconds := parse_time(text)) == 0:
        raise ValueError("give a number of steps, or a time such as 30s, 5m or 2h")
    return None, seconds


def _save_interval(every: int | str) -> int | str:
    parse_save_interval(every)
    return every


# What the other optimisers take where nothing else is said; SGD's are the defaults of the settings themselves.
OTHER_OPTIMISERS: dict[str, dict[str, Any]] = {
    "adamw": {"base_lr": 1e-3, "weight_decay": 0.05, "decay_norm_and_bias": False},
    "lars": {"base_lr": 0.3, "weight_decay": 1e-6, "decay_norm_and_bias": False},  # SimCLR's
    "muon": {"base_lr": 0.1, "weight_decay": 5e-4, "decay_norm_and_bias": False},
}
OF_OPTIMISER = {*OTHER_OPTIMISERS["adamw"]}  # the settings that go with one
MOST_ADAMW = 0.02  # of its rate: every weight moves by about as much in a step


class TrainSettings(Section):
    """How long and how fast to learn; the defaults are the paper's."""

    epochs: Annotated[int, Ge(1), MayChange.TRAINING] = 200  # passes over the pictures
    steps: Annotated[Annotated[int, Ge(1)] | None, MayChange.TRAINING] = None  # of the whole run, instead of epochs
    batch_size: Annotated[int, Ge(2)] = 256  # pictures in a step, over all processes
    resolution: Schedule | None = None  # [[share of the run, side of the crop], ...]; None: data.size throughout
    # sgd has momentum 0.9; lars as well, and steps of matrices and convolutions in proportion to their size; muon sets
    # the singular values of those steps near 1, and moves norms and biases by SGD at 0.3 of the rate. The rate and
    # decay of a recipe for another optimiser are dropped: each has its own.
    optimiser: Literal["sgd", "adamw", "lars", "muon"] = "sgd"
    base_lr: Annotated[float, Gt(0)] = 0.06  # sgd and lars: for a batch of 256, and scaled with the batch
    warmup_epochs: Annotated[float, Ge(0)] = 5  # in which the rate rises from 0, step by step
    weight_decay: Annotated[float, Ge(0)] = 5e-4
    decay_norm_and_bias: bool = True  # whether batch norm and biases decay too
    # Parts of a batch that are computed one after the other, to save memory. Teachers and queues move once a batch
    # (but for the queues of methods that store before they compare: once a part); batch norm, and losses that contrast
    # the pictures of a batch with each other, see one part at a time.
    accumulate: Annotated[int, Ge(1), MayChange.TRAINING] = 1
    # One to three minutes of waiting, then faster steps on some machines. The last bits depend on it.
    compile: Annotated[bool, MayChange.UPKEEP] = False
    device: Annotated[str, MayChange.PLACE] = "auto"  # cpu, cuda, cuda:1, mps; auto: the best there is
    precision: Precision = "auto"  # auto: bf16 where native, fp16 on CUDA devices without it, else fp32
    # Steps, or a time: 30s, 5m, 2h.
    checkpoint_every: Annotated[int | str, AfterValidator(_save_interval), MayChange.UPKEEP] = "5m"
    log_every: Annotated[int, Ge(1), MayChange.UPKEEP] = 10  # steps
    seed: Annotated[int, Ge(0), Lt(2**63)] = 0  # of all randomness

    @model_validator(mode="before")
    @classmethod
    def _fill_from_optimiser(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        return OTHER_OPTIMISERS.get(str(values.get("optimiser")), {}) | values

    @model_validator(mode="after")
    def _rate_can_be_meant(self) -> Self:
        if self.optimiser == "adamw" and self.base_lr > MOST_ADAMW:
            usual = OTHER_OPTIMISERS["adamw"]["base_lr"]
            raise ValueError(f"base_lr of adamw is at most {MOST_ADAMW} (usual: {usual}), not {self.base_lr}")
        return self

    @property
    def peak_lr(self) -> float:
        """The rate after the warm-up."""
        # A step of AdamW and Muon has a length that the rate alone decides, however large the gradient: scaled, the
        # small batches of one machine would only make it short. SGD's and LARS's papers scale theirs.
        return self.base_lr * (self.batch_size / 256 if self.optimiser in ("sgd", "lars") else 1)


class AugmentSettings(Section):
    """The kinds of view; plain is that of the method `supervised`."""

    strong: ViewSettings = STRONG
    weak: ViewSettings = WEAK
    plain: ViewSettings = ViewSettings()


class Settings(Section):
    """Everything that decides a run. `method` is checked against the method's constructor."""

    data: DataSettings = DataSettings()
    augment: AugmentSettings = AugmentSettings()
    backbone: BackboneSettings = BackboneSettings()
    method: dict[str, Any] = Field(default={"name": "msvq"})
    train: TrainSettings = TrainSettings()
    evaluate: EvaluateSettings = EvaluateSettings()
    analyze: AnalyzeSettings = AnalyzeSettings()

    @model_validator(mode="before")
    @classmethod
    def _without_other_methods(cls, values: Any) -> Any:
        """A recipe's `method_defaults` decide nothing once a method is chosen; runs used to write them down."""
        return {key: values[key] for key in values if key != "method_defaults"} if isinstance(values, dict) else values

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
