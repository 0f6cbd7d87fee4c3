"""MSVQ in a training loop of your own: the parts of the package and a DataLoader; what it leaves is a run.

python examples/msvq_in_a_plain_loop.py
"""

from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

import msvq
from msvq.data.augment import STRONG, WEAK, Augment
from msvq.data.patterns import make_patterns
from msvq.methods import MSVQ, Batch
from msvq.model.resnet import ResNet

MEAN, STD = (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)


def main(
    out: Path = Path("runs/plain-loop"), num_pictures: int = 2048, epochs: int = 2, width: int = 8
) -> tuple[msvq.Run, list[float]]:
    """Train; return the run and the mean loss of each epoch."""
    images, labels = make_patterns(num_pictures, seed=0)  # uint8 [N, H, W, 3]; any loader of such batches will do
    pictures = TensorDataset(torch.from_numpy(images), torch.from_numpy(labels))
    loader = DataLoader(pictures, batch_size=64, shuffle=True, drop_last=True)  # a multiple of bn_splits

    torch.manual_seed(0)
    method = MSVQ(ResNet(width=width), queue_size=1024, warm_start=0.5)  # any module with a feature_dim is a backbone
    augment = Augment({"strong": STRONG, "weak": WEAK}, size=32, mean=MEAN, std=STD)
    learning = [parameter for parameter in method.parameters() if parameter.requires_grad]  # the student's alone
    optimiser = torch.optim.SGD(learning, lr=0.06, momentum=0.9, weight_decay=5e-4)

    losses, step = [], 0
    for epoch in range(epochs):
        total = 0.0
        for batch, known in loader:
            views = augment(batch, method.views)  # one strong, three weak: float [N, 3, 32, 32] each
            loss = method(Batch(views, known, progress=step / (epochs * len(loader)))).value
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            total, step = total + loss.item(), step + 1
        losses.append(total / len(loader))
        print(f"epoch {epoch + 1}: loss {losses[-1]:.3f}")
    # What was learned for: report, search, export and evaluate work on it.
    run = msvq.save_run(method, out, data="patterns", size=32, mean=MEAN, std=STD, overwrite=True)
    return run, losses


if __name__ == "__main__":
    main()
