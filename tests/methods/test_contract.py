"""What every registered method must do; a new one joins by being registered."""

import copy
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch

from msvq.methods import METHODS, Method
from msvq.model.queue import Queue
from msvq.model.teacher import Teacher
from msvq.train.optim import make_optimiser

Make = Callable[..., Any]
every_method = pytest.mark.parametrize("name", METHODS)


def optimiser_of(method: Method) -> torch.optim.Optimizer:
    return make_optimiser(method, weight_decay=5e-4, decay_norm_and_bias=True)


@every_method
def test_loss_is_finite_and_a_gradient_reaches_all_that_learns(name: str, tiny: Make, random_batch: Make) -> None:
    method = tiny(METHODS[name])
    loss = method(random_batch(method, progress=0.25)).value
    assert loss.shape == ()
    assert torch.isfinite(loss)
    loss.backward()
    learning = {n: p for n, p in method.named_parameters() if p.requires_grad}
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in learning.values())
    assert sum(p.grad.abs().sum() for p in method.encoder.parameters()) > 0


@every_method
def test_teachers_get_no_gradient_and_are_not_optimised(name: str, tiny: Make, random_batch: Make) -> None:
    method = tiny(METHODS[name])
    method(random_batch(method)).value.backward()
    frozen = [p for m in method.modules() if isinstance(m, Teacher) for p in m.parameters()]
    assert all(p.grad is None and not p.requires_grad for p in frozen)
    held = {id(p) for group in optimiser_of(method).param_groups for p in group["params"]}
    assert held.isdisjoint(map(id, frozen))
    assert held >= {id(p) for p in method.encoder.parameters()}
    assert held == {id(p) for p in method.parameters() if p.requires_grad}


@every_method
def test_state_survives_save_and_load(name: str, tiny: Make, random_batch: Make) -> None:
    method, other = tiny(METHODS[name]), tiny(METHODS[name])
    for seed in range(3):
        method(random_batch(method, seed=seed))
    other.load_state_dict(copy.deepcopy(method.state_dict()))
    batch = random_batch(method, seed=9)
    assert torch.equal(method(batch).value, other(batch).value)
    assert torch.equal(method(batch).value, other(batch).value)  # and the state after it


@every_method
def test_loss_falls_on_a_tiny_problem(name: str, tiny: Make, random_batch: Make) -> None:
    """The student learns one batch against teachers, queues and draws that are put back after each step."""
    method = tiny(METHODS[name])
    batch = random_batch(method, num=16)
    learning = {n for n, p in method.named_parameters() if p.requires_grad}
    fixed = {n: v.clone() for n, v in method.state_dict().items() if n not in learning}
    optimiser, losses = optimiser_of(method), []
    for group in optimiser.param_groups:
        group["lr"] = 0.02
    for _ in range(25):
        method.load_state_dict(fixed, strict=False)
        optimiser.zero_grad()
        loss = method(batch._replace(progress=1.0)).value
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.02


@every_method
def test_only_the_student_passes_it_declares_are_run(name: str, tiny: Make, random_batch: Make) -> None:
    method, passes = tiny(METHODS[name]), []
    method.encoder.register_forward_hook(lambda *_: passes.append(1))
    method(random_batch(method, progress=0.25))
    assert len(passes) == METHODS[name].student_passes


TEACHER_PASSES = {
    **{"msvq": 3, "msv": 2, "mq": 2, "msvq-dagger": 3, "msvq-x3": 3, "msvq-x5": 4, "ressl": 1, "mocov2": 1, "co2": 1},
    **{"byol": 2, "msf": 2, "cmsf": 3, "mnn": 2, "unmix": 1, "snclr": 2, "sce": 2},
}


@every_method
def test_only_the_teacher_passes_it_needs_are_run(name: str, tiny: Make, random_batch: Make) -> None:
    method, passes = tiny(METHODS[name]), []
    for teacher in (m for m in method.modules() if isinstance(m, Teacher)):
        teacher.network.register_forward_hook(lambda *_: passes.append(1))
    method(random_batch(method, progress=0.25))
    assert len(passes) == TEACHER_PASSES.get(name, 0)


@every_method
def test_hyperparameters_are_typed_keywords_with_defaults(name: str) -> None:
    kind = METHODS[name]
    for keyword, (annotation, default) in kind.hyperparameters().items():
        assert annotation is not inspect.Parameter.empty
        assert default is not inspect.Parameter.empty, keyword
    assert kind.title != Method.title
    assert kind.paper.startswith("arXiv") or name == "supervised"


@every_method
def test_the_encoder_gives_features(name: str, tiny: Make) -> None:
    encoder = tiny(METHODS[name]).encoder
    assert encoder.eval()(torch.zeros(2, 3, 16, 16)).shape == (2, encoder.feature_dim)


WITH_SOFT_LABELS = {"msvq", "msv", "mq", "msvq-dagger", "msvq-x3", "msvq-x5", "ressl", "sce", "co2", "mocov2", "unmix"}


@every_method
def test_soft_labels_show_the_queue_as_it_was_before_the_step(name: str, tiny: Make, random_batch: Make) -> None:
    method = tiny(METHODS[name])
    method(random_batch(method, seed=1))
    before = [m.keys for m in method.modules() if isinstance(m, Queue)]
    labels = [m.labels for m in method.modules() if isinstance(m, Queue)]
    soft_labels = method(random_batch(method, seed=2)).soft_labels
    assert bool(soft_labels) == (name in WITH_SOFT_LABELS)
    for soft_label in soft_labels:
        slot = next(i for i, keys in enumerate(before) if torch.equal(keys, soft_label.keys))
        assert torch.equal(labels[slot], soft_label.labels)
        assert not soft_label.z.requires_grad
        torch.testing.assert_close(soft_label.z.norm(dim=1), torch.ones(len(soft_label.z)))
