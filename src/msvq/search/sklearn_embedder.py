"""A trained encoder as a step of a scikit-learn pipeline."""

from collections.abc import Iterable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin

from msvq.runs.encoder import LoadedEncoder
from msvq.runs.encoder_names import load_encoder
from msvq.runs.run_dir import RunDir


class Embedder(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]  # untyped bases
    """Pictures to the features of an encoder: `make_pipeline(Embedder("runs/x"), LogisticRegression())`.

    `encoder` is whatever `msvq.load_encoder` takes. It learns nothing: the encoder is trained already. What is pickled
    or cloned is its name, not its network, so that has to be there, unchanged, where a pickle is opened.
    """

    def __init__(self, encoder: str | Path | RunDir, *, batch_size: int = 500, device: str | None = None) -> None:
        self.encoder = encoder
        self.batch_size = batch_size
        self.device = device

    def fit(self, X: Any, y: Any = None) -> Self:  # noqa: N803 - scikit-learn's name
        """Check that there is such an encoder; the pictures are not looked at."""
        self._encoder()
        return self

    def transform(
        self,
        X: ArrayLike | Sequence[ArrayLike] | Iterable[str | PathLike[str]],  # noqa: N803
    ) -> NDArray[np.float32]:
        """Features [N, d] of arrays of pictures or of a list of files, as `Run.embed` takes them."""
        return self._encoder().to(self.device).embed(X, batch_size=self.batch_size)

    def _encoder(self) -> LoadedEncoder:
        """The encoder, loaded once; another after `set_params(encoder=...)`."""
        known: tuple[Any, LoadedEncoder] | None = getattr(self, "_loaded", None)
        if known is None or known[0] != self.encoder:
            self._loaded = known = (self.encoder, load_encoder(self.encoder))
        return known[1]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in super().__getstate__().items() if name != "_loaded"}

    @property
    def _n_features_out(self) -> int:
        """How many names `get_feature_names_out` gives: embedder0, embedder1 and so on."""
        return self._encoder().feature_dim

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __sklearn_tags__(self) -> Any:
        """What scikit-learn wants to know: no table of numbers goes in, and `fit` may be left out."""
        tags = super().__sklearn_tags__()
        tags.requires_fit, tags.no_validation, tags.input_tags.two_d_array = False, True, False
        return tags
