"""What several tests share: tiny networks, batches, and methods whose views are the embeddings themselves."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from msvq.evaluate.diagnostics.embedding_map import save_map
from msvq.methods import Batch, Method
from msvq.model.losses import l2_normalize
from msvq.model.queue import Queue
from msvq.model.resnet import ResNet
from msvq.model.teacher import Network, Teacher
from msvq.report.page import write_report


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the golden files anew")


# What takes seconds of a core, the longest files first: they begin in this order, so that no core works alone at the
# end, and `make check` leaves them out. A file, or a test of it.
SLOW = (
    "tests/train/test_ddp.py",
    "tests/test_current_folder.py",
    "tests/docs/test_commands.py::test_a_page_can_be_followed",
    "tests/test_faults.py",
    "tests/test_bare_machine.py",
    "tests/reproduce/test_sweep.py::test_a_sweep_is_killed_half_way_and_continued",
    "tests/reproduce/test_compare.py",
    "tests/train/test_trainer.py",
    "tests/export/test_export.py::test_a_format_is_loaded_by_its_own_library",
    "tests/export/test_export.py::test_a_trained_run_and_its_checkpoints",
    "tests/export/test_export.py::test_nothing_is_left_of_an_export_that_differs",
    "tests/train/test_interruptions.py",
    "tests/train/test_callbacks.py",
    "tests/test_own_pictures.py",
    "tests/train/test_steps.py::test_compiled_networks_give_the_same_losses",
    "tests/train/test_steps.py::test_fp16_resumes_to_the_bit",
    "tests/test_throughput.py::test_one_command_prints_ratios_and_writes_them",
    "tests/export/test_plans.py",
    "tests/test_hostile.py",
    "tests/test_any_backbone.py",
    "tests/runs/test_judging.py",
    "tests/cli/test_cli.py::test_demo_runs_twice_but_leaves_other_runs_alone",
    "tests/cli/test_cli.py::test_overwrite_keeps_what_is_not_the_runs",
    "tests/cli/test_cli.py::test_pretrain_resume_and_overwrite",
    "tests/test_time_to_accuracy.py::test_the_command_runs_on_a_small_copy_of_the_data_set",
    "tests/methods/test_contract.py::test_loss_falls_on_a_tiny_problem",
    "tests/train/test_loggers.py",
    "tests/preflight/test_bench.py::test_the_parts_are_the_step",
    "tests/test_wheel.py",
    "tests/docs/test_site.py",
    "tests/test_damage.py",
    "tests/train/test_resume.py",
    "tests/test_device.py::test_a_run_of_every_method_is_the_processors_in_every_precision",
    "tests/test_device.py::test_bench_times_a_device",
    "tests/test_device.py::test_a_run_goes_on_to_the_bit_in_parts_in_half_precision",
    "tests/train/test_budget.py",
    "tests/runs/test_own_loop.py",
    "tests/runs/test_run_dir.py",
    "tests/data/test_stream.py",
    "tests/data/test_workers.py",
    "tests/data/test_benchmark_sets.py::test_every_set_trains_from_the_command_line",
    "tests/search/test_embedding.py::test_a_killed_command_goes_on",
    "tests/runs/test_encoder_names.py::test_a_crop_survives_an_export",
    "tests/runs/test_encoder_names.py::test_an_export",
    "tests/runs/test_encoder_names.py::test_a_network_of_timm_goes",
    "tests/search/test_looking.py::test_pictures_are_classified_saved_and_exported",
    "tests/test_examples.py",
    "tests/test_library.py",
    "tests/test_messy_folder.py",
)


@pytest.hookimpl(tryfirst=True)  # before -m looks at the marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> int:
        return next((number for number, start in enumerate(SLOW) if item.nodeid.startswith(start)), len(SLOW))

    places = {item.nodeid: place(item) for item in items}
    items.sort(key=lambda item: places[item.nodeid])
    for item in items:
        if places[item.nodeid] < len(SLOW):
            item.add_marker(pytest.mark.slow)
    if config.args == config.getini("testpaths"):
        gone = [start for number, start in enumerate(SLOW) if number not in places.values()]
        if gone:
            raise pytest.UsageError(f"tests/conftest.py names tests that are not there: {', '.join(gone)}")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True, scope="session")
def _few_test_pictures() -> Iterator[None]:
    """Runs in tests are judged on 200 test pictures rather than 2,000: they check the machinery, not the accuracy."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("msvq.data.sources.PATTERNS_TEST", 200)
        yield


@pytest.fixture(autouse=True, scope="session")
def _own_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests pack and download into a folder of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MSVQ_HOME", str(tmp_path_factory.mktemp("home")))
        yield


@pytest.fixture(autouse=True, scope="session")
def _small_maps_and_no_figures() -> Iterator[None]:
    """After a run in tests, 30 pictures are on the map, 3 batches are audited and no figures drawn: all have tests."""
    with pytest.MonkeyPatch.context() as patch:

        def few(*arguments: Any, num: int) -> None:
            save_map(*arguments, num=min(num, 30))

        patch.setattr("msvq.runs.analyze.save_map", few)
        patch.setattr("msvq.evaluate.diagnostics.gallery.LOOKED_AT", 3)
        patch.setattr("msvq.api.write_report", partial(write_report, figures=False))
        yield


class IdentityBackbone(nn.Module):
    """Hands an embedding through, by a matrix that could learn, so that a test chooses z directly."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.feature_dim = dim
        self.weight = nn.Parameter(torch.eye(dim))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


MakeMethod = Callable[..., Any]


@pytest.fixture
def on_embeddings() -> MakeMethod:
    """Build a method in fp64 whose views are embeddings [N, dim]: no projector, predictor or batch norm."""

    def make(kind: type[Method], *, dim: int = 8, **options: Any) -> Any:
        method: Any = kind(IdentityBackbone(dim), output_dim=dim, **options)
        for network in (m for m in method.modules() if isinstance(m, Network)):
            network.projector = nn.Identity()
        if hasattr(method, "predictor"):
            method.predictor = nn.Identity()
        method.double()
        for queue in (m for m in method.modules() if isinstance(m, Queue)):
            queue.keys = l2_normalize(queue.keys)  # to fp64's precision
        return method

    return make


def tiny_method(kind: type[Method], **options: Any) -> Any:
    """A method on a very narrow ResNet, with a queue of 32 where it has one."""
    keywords = kind.hyperparameters()
    small = {"queue_size": 32, "hidden_dim": 16, "output_dim": 8}
    tiny = {**small, "predictor_dim": 4, "num_classes": 4, "num_pictures": 64, "base_options": small}
    chosen = {key: value for key, value in tiny.items() if key in keywords} | options
    return kind(ResNet(width=4), **chosen)


@pytest.fixture
def tiny() -> MakeMethod:
    return tiny_method


@pytest.fixture
def random_batch() -> MakeMethod:
    """A batch of random views for a method."""

    def make(method: Method, num: int = 16, *, size: int = 16, progress: float = 0.0, seed: int = 1) -> Batch:
        generator = torch.Generator().manual_seed(seed)
        dtype = next(method.parameters()).dtype
        views = tuple(
            torch.randn(num, 3, size, size, generator=generator).to(dtype=dtype, memory_format=torch.channels_last)
            for _ in method.views
        )
        return Batch(views, torch.arange(num) % 4, progress, torch.arange(num))

    return make


@pytest.fixture
def teachers_of() -> Callable[[nn.Module], list[Teacher]]:
    return lambda method: [m for m in method.modules() if isinstance(m, Teacher)]
