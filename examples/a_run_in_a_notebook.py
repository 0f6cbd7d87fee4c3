"""A run from start to end in Python. In a notebook, each part (# %%) is a cell, and `run` shows itself with its curves.

python examples/a_run_in_a_notebook.py
"""

from pathlib import Path
from typing import Any

import msvq
from msvq.data.patterns import make_patterns


def main(out: str | Path = "runs/notebook", epochs: int = 2, **options: Any) -> msvq.Run:
    """Train, judge, look, use, hand over."""
    # %% Train. `data` is a folder of your pictures, or a name that `msvq datasets` lists.
    run = msvq.pretrain(data="patterns", out=out, epochs=epochs, **options)

    # %% Later, or elsewhere: open it. The last expression of a cell is shown as a table and two charts.
    run = msvq.load(out)
    print(run)

    # %% How good is it? Every result is kept in RUN/eval.
    print(run.knn(k=20))
    print(run.probe(labels=0.1, seeds=3))

    # %% Has it collapsed, and what do its teachers find?
    print(run.analyze())

    # %% Use it.
    images, _ = make_patterns(8, seed=1)
    print("features", run.embed(images).shape)

    # %% Hand it over: weights, how to feed them and a card, in a folder of their own.
    print("export", run.export("safetensors", f"{out}-export", overwrite=True))

    # %% One page with everything.
    print("report", run.report())
    return run


if __name__ == "__main__":
    main()
