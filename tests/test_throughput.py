"""The benchmark of speed runs, and its conventional loop computes what MSVQ computes."""

import importlib
import json
import math
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from msvq.data.patterns import make_patterns
from msvq.methods import METHODS, Batch
from msvq.model.losses import l2_normalize
from msvq.model.resnet import ResNet

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def sibling(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A file of benchmarks/ by its name, as a script there imports it."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module


def test_ratio_is_taken_repetition_by_repetition(sibling: Any) -> None:
    timing = sibling("timing")
    assert timing.ratio([2.0, 9.0, 8.0], [1.0, 3.0, 2.0]) == (3.0, 2.0, 4.0)
    assert str(timing.ratio([2.05, 4.26, 2.2], [1.0, 2.0, 1.0])) == "2.13 (2.05-2.20)"
    with pytest.raises(ValueError, match="zip"):
        timing.ratio([1.0], [1.0, 2.0])


def test_alternate_warms_up_once_and_turns_round(sibling: Any) -> None:
    calls: list[str] = []

    def slow() -> None:
        calls.append("slow")
        time.sleep(0.02)

    seconds = sibling("timing").alternate({"slow": slow, "fast": lambda: calls.append("fast")}, 2)
    assert {name: len(values) for name, values in seconds.items()} == {"slow": 2, "fast": 2}
    assert calls == ["fast", "slow", "slow", "fast", "fast", "slow"]
    assert min(seconds["slow"]) > max(seconds["fast"])


def test_memory_beyond_sees_a_block_that_is_freed_again() -> None:
    """In a process of its own, as the benchmark does it, which has kept freed memory: that is not counted as there."""
    code = (
        "import torch; from timing import memory_beyond; from msvq.core.runtime import keep_freed_memory; "
        "keep_freed_memory(); x = torch.ones(8 << 20); y = torch.ones(100); del x; "
        "print(memory_beyond(lambda: torch.ones(8 << 20).sum()))"
    )
    words = [sys.executable, "-c", code]
    answer = subprocess.run(words, capture_output=True, text=True, cwd=BENCHMARKS, check=True).stdout.strip()
    assert answer == "None" or 30 < float(answer) < 60


def test_conventional_network_is_ours(sibling: Any) -> None:
    """Embeddings, gradients and running statistics, with split batch norm."""
    theirs = sibling("conventional").Encoder(4, 32)
    ours: Any = METHODS["msvq"](ResNet(width=4)).student
    ours.load_state_dict(theirs.state_dict())
    theirs, ours = theirs.double(), ours.double()
    x, weights = torch.randn(16, 3, 32, 32, dtype=torch.float64), torch.randn(16, 128, dtype=torch.float64)
    z, expected = theirs(x), l2_normalize(ours(x.to(memory_format=torch.channels_last)))
    torch.testing.assert_close(z, expected)
    for value in (z, expected):
        (value * weights).sum().backward()
    torch.testing.assert_close(theirs.backbone.conv1.weight.grad, ours.backbone.conv1.weight.grad)
    torch.testing.assert_close(theirs.backbone.layer4[0].bn1.running_var, ours.backbone.layer4[0].bn1.running_var)


def test_conventional_step_is_ours(sibling: Any) -> None:
    """Loss after loss over several steps, through teachers, queues and optimiser; without the random order."""
    images, _ = make_patterns(16, seed=0)
    theirs = sibling("conventional").ConventionalMSVQ(images, width=4, size=32, batch_size=16, queue_size=64, workers=0)
    theirs.teach = torch.no_grad()(lambda teacher, x: teacher(x))
    theirs.lr = 0.5
    ours: Any = METHODS["msvq"](ResNet(width=4), queue_size=64, shuffle=False)
    ours.student.load_state_dict(theirs.student.state_dict())
    for teacher in ours.teachers:
        teacher.network.load_state_dict(theirs.student.state_dict())
    for queue, keys in zip(ours.queues.values(), theirs.queues, strict=True):
        queue.keys = keys.clone()
    optimiser = torch.optim.SGD(ours.student.parameters(), lr=0.5, momentum=0.9, weight_decay=5e-4)
    for _ in range(3):
        views = tuple(torch.randn(16, 3, 32, 32) for _ in range(4))
        loss = ours(Batch(views, torch.zeros(16, dtype=torch.int64), 0.0)).value
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        assert theirs.train_step(*views) == pytest.approx(float(loss.detach()), rel=1e-4)
    assert next(theirs.steps()) > 0


def test_limit_repeats_what_the_method_asked_of_its_networks(sibling: Any) -> None:
    peers, (images, _) = sibling("peers"), make_patterns(16, seed=0)
    for method, taught in {"msvq": [True, True, True, False], "unmix": [False, True, False]}.items():
        limit = peers.Limit(peers.Product(images, method=method, width=4, size=32, batch_size=16))
        assert [by_teacher for _, by_teacher, _ in limit.calls] == taught
        next(limit.steps())
        student, _, _ = limit.calls[-1]
        assert student.backbone.conv1.weight.grad is not None


@pytest.mark.parametrize("kind", ["LightlyExample", "LightlyMoCoV2", "LightlySimCLR", "LightlyBYOL", "LightlyFastSiam"])
def test_lightly_takes_steps(sibling: Any, kind: str) -> None:
    pytest.importorskip("lightly")
    images, _ = make_patterns(32, seed=0)
    peer = getattr(sibling("peers"), kind)(images, width=4, size=32, batch_size=16, workers=0)
    before = peer.encoder.conv1.weight.detach().clone()
    steps = peer.steps()
    assert all(math.isfinite(next(steps)) for _ in range(2))
    assert not torch.equal(peer.encoder.conv1.weight, before)
    assert all(not p.requires_grad for p in getattr(peer, "teacher", torch.nn.Identity()).parameters())


def test_a_prediction_is_the_slower_of_arithmetic_and_memory_and_a_launch(sibling: Any) -> None:
    predict = sibling("predict")
    card = predict.Card(half=2, tf32=1, fp32=1, bandwidth=1)
    kernels = [
        predict.Kernel("aten.convolution.default", "half", 6e12, 1e9),  # 3 s, or 1 s
        predict.Kernel("aten.add.Tensor", "fp32", 1e9, 4e9),  # 1 ms, or 4 s
    ]
    told = predict.predict(kernels, card)
    assert (told.memory, told.launches) == (4, 2 * predict.LAUNCH)
    assert told.seconds == pytest.approx(7 + 2 * predict.LAUNCH)
    assert predict.bound(told) == "memory"
    converted = predict.predict([kernels[0]._replace(num_bytes=2e9)], card, converts=True)
    assert converted.seconds == pytest.approx(6, rel=1e-4)  # three times its bytes
    assert predict.bound(predict.predict(kernels[:1], card)) == "arithmetic"
    assert predict.bound(predict.predict([kernels[1]._replace(num_bytes=1.0, operations=1.0)], card)) == "launches"


def test_a_kernel_tells_what_it_reads_and_writes(sibling: Any) -> None:
    predict, aten = sibling("predict"), torch.ops.aten
    x, size = torch.ones(10), 40  # bytes
    assert predict.describe(aten.add.Tensor, (x, x), {}, x + x).num_bytes == 3 * size
    assert predict.describe(aten._foreach_add_.Scalar, ([x, x], 1.0), {}, None).num_bytes == 4 * size
    # Parameters, gradients and momentum are read, the first and the last are written.
    assert predict.describe(aten._fused_sgd_.default, ([x], [x], [x]), {"lr": 0.1}, None).num_bytes == 5 * size
    product = predict.describe(aten.mm.default, (x.view(2, 5), x.view(5, 2)), {}, torch.ones(2, 2))
    assert (product.kind, product.operations) == ("fp32", 2 * 2 * 5 * 2)


@pytest.mark.parametrize("loop", ["ours", "authors", "plain"])
def test_two_small_batches_tell_the_kernels_of_a_large_one(
    loop: str, sibling: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    predict = sibling("predict")
    monkeypatch.setattr(predict, "BATCHES", (16, 32))
    make = {
        "ours": predict.ours("mocov2", 4, "bf16"),
        "authors": predict.authors(4),
        "plain": predict.plain_moco(4, "bf16"),
    }[loop]
    told, counted = predict.at_batch(make, 64), predict.kernels_of(make, 64)
    assert [kernel.name for kernel in told] == [kernel.name for kernel in counted]
    for what in ("operations", "num_bytes"):
        foretold, found = (sum(getattr(kernel, what) for kernel in kernels) for kernels in (told, counted))
        assert foretold == pytest.approx(found, rel=0.05)  # chance decides how many views are jittered and blurred


def test_one_command_prints_ratios_and_writes_them(tmp_path: Path) -> None:
    out = tmp_path / "throughput.json"
    words = [sys.executable, str(BENCHMARKS / "throughput.py"), "--quick", "--only", "msvq16", "--only", "parts"]
    finished = subprocess.run([*words, "--out", str(out)], capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    assert "ours / conventional" in finished.stdout
    results = json.loads(out.read_text())
    assert set(results["parts"]) == {"msvq16", "parts"}
    assert {"cores", "threads", "native bf16", "precision", "torch"} == set(results["machine"])
    rates, share = (results["parts"]["msvq16"][name] for name in ("pictures per second", "ours / limit"))
    assert share["median"] == pytest.approx(rates["ours"] / rates["limit"], rel=0.01)
    assert share["low"] <= share["median"] <= share["high"]
