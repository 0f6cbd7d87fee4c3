"""A trained encoder in scikit-learn: features into a pipeline, a grid search over what follows, a pickle of it all.

msvq pretrain --data patterns --out runs/x --epochs 5
python examples/embed_and_classify.py runs/x
"""

import pickle
import sys

from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import msvq
from msvq.data.patterns import make_patterns


def main(run: str, num_train: int = 1000, num_test: int = 500) -> float:
    """Fit on a few labelled pictures and return the accuracy on others."""
    images, labels = make_patterns(num_train, seed=10)  # or a list of files: ["cats/1.jpg", "dogs/7.png", ...]
    test_images, test_labels = make_patterns(num_test, seed=11)

    features = msvq.Embedder(run).transform(images)  # once, rather than for every setting that is tried
    search = GridSearchCV(
        make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)),
        {"logisticregression__C": [0.01, 0.1, 1.0]},
        cv=3,
    ).fit(features, labels)

    whole = make_pipeline(msvq.Embedder(run), search.best_estimator_)  # from pictures to classes
    accuracy = float(whole.score(test_images, test_labels))
    print(f"C = {search.best_params_['logisticregression__C']}: {100 * accuracy:.1f} % of {num_test} pictures")
    print(f"as a pickle: {len(pickle.dumps(whole)):,} bytes, for it holds the name of the run and not the network")
    return accuracy


if __name__ == "__main__":
    main(sys.argv[1])
