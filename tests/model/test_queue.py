"""The queue: first in, first out, nothing dropped, nothing with gradient."""

import pytest
import torch

from msvq.model.losses import l2_normalize
from msvq.model.queue import Queue


def test_it_starts_as_random_unit_vectors_without_labels() -> None:
    queue = Queue(64, 16)
    torch.testing.assert_close(queue.keys.norm(dim=1), torch.ones(64))
    assert (queue.labels == -1).all()
    assert queue.pointer == 0


def test_slots_fill_in_order_and_the_oldest_goes_first() -> None:
    queue, batches = Queue(8, 4), [torch.randn(4, 4) for _ in range(3)]
    for index, z in enumerate(batches):
        queue.push(z, torch.full((4,), index))
    torch.testing.assert_close(queue.keys, l2_normalize(torch.cat([batches[2], batches[1]])))
    assert queue.labels.tolist() == [2, 2, 2, 2, 1, 1, 1, 1]
    assert queue.pushed == 12


def test_no_initial_vector_is_left_after_one_round() -> None:
    queue = Queue(16, 4)
    start = queue.keys.clone()
    for _ in range(4):
        queue.push(torch.randn(4, 4), torch.zeros(4, dtype=torch.int64))
    assert not (queue.keys[:, None] == start[None]).all(-1).any()
    torch.testing.assert_close(queue.keys.norm(dim=1), torch.ones(16))


@pytest.mark.parametrize("num", [3, 5, 7])
def test_a_batch_that_does_not_divide_the_queue_wraps_and_drops_nothing(num: int) -> None:
    queue, seen = Queue(7, 4), []
    for _ in range(5):
        z = torch.randn(num, 4)
        queue.push(z, torch.zeros(num, dtype=torch.int64))
        seen.append(l2_normalize(z))
    newest = torch.cat(seen)[-7:]
    assert queue.pointer == 5 * num % 7
    torch.testing.assert_close(queue.keys.roll(-int(queue.pointer), 0), newest)


def test_a_batch_larger_than_the_queue_leaves_its_newest() -> None:
    queue, z = Queue(4, 3), torch.randn(10, 3)
    queue.push(z, torch.arange(10))
    assert sorted(queue.labels.tolist()) == [6, 7, 8, 9]


def test_lengths_are_kept_on_request() -> None:
    queue, z = Queue(4, 2, with_lengths=True), torch.tensor([[3.0, 4.0], [0.0, 2.0], [1.0, 0.0]])
    for _ in range(2):
        queue.push(z, torch.zeros(3, dtype=torch.int64))
    assert queue.lengths is not None and queue.lengths.tolist() == [2.0, 1.0, 1.0, 5.0]  # wrapped, as the keys are
    torch.testing.assert_close(queue.keys[0] * queue.lengths[0], z[1])
    assert "lengths" not in Queue(4, 2).state_dict()


def test_stored_keys_carry_no_gradient() -> None:
    queue = Queue(8, 4)
    queue.push(torch.randn(4, 4, requires_grad=True) * 2, torch.zeros(4, dtype=torch.int64))
    assert not queue.keys.requires_grad


def test_pushing_before_backward_does_not_change_the_gradient() -> None:
    queue, z = Queue(8, 4), torch.randn(4, 4, requires_grad=True)
    keys = queue.keys.clone()
    loss = (z @ queue.keys.T).square().sum()
    queue.push(z, torch.zeros(4, dtype=torch.int64))
    loss.backward()
    torch.testing.assert_close(z.grad, 2 * (z @ keys.T).detach() @ keys)


def test_it_survives_save_and_load() -> None:
    queue = Queue(6, 4)
    queue.push(torch.randn(4, 4), torch.arange(4))
    other = Queue(6, 4)
    other.load_state_dict(queue.state_dict())
    for q in (queue, other):
        torch.manual_seed(5)
        q.push(torch.randn(4, 4), torch.arange(4))
    assert torch.equal(queue.keys, other.keys)
    assert torch.equal(queue.labels, other.labels)


def test_an_empty_queue_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one key"):
        Queue(0, 4)
