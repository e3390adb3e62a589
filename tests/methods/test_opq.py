"""OPQ: a reduction and a rotation before PQ."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from phpq.codes import FloatArray
from phpq.errors import ConfigError
from phpq.methods._shallow import principal_axes
from phpq.methods.opq import OPQ
from shallow_features import CHANNELS, codes_of, made_up_features, shallow, unit_features


def fitted(train: torch.Tensor, *assignments: str, bits: int = 16) -> OPQ:
    method = shallow("opq", *assignments, bits=bits)
    assert isinstance(method, OPQ)
    method.fit_features(train, seed=0)
    return method


def distortion(method: OPQ, rows: FloatArray) -> float:
    """Return the mean squared distance of transformed rows to their nearest codewords."""
    words = method.get_buffer("codewords").numpy()
    values = method.transform(torch.from_numpy(rows)).numpy()
    blocks = values.reshape(len(rows), len(words), -1)
    return float(
        sum(((blocks[:, m, None] - words[m]) ** 2).sum(2).min(1).mean() for m in range(len(words)))
    )


SMALL = ("quantizer.codebook_size=16", "quantizer.num_codebooks=4", "method.options.pca_dim=16")


def test_the_rotation_is_orthonormal_within_the_principal_axes() -> None:
    train = made_up_features(300)
    method = fitted(train, *SMALL)
    matrix = method.get_buffer("rotation").double().numpy()
    assert matrix.shape == (16, CHANNELS)
    np.testing.assert_allclose(matrix @ matrix.T, np.eye(16), atol=1e-4)
    found = principal_axes(unit_features(train, train), 16)
    np.testing.assert_allclose(matrix @ found.axes.T @ found.axes, matrix, atol=1e-4)
    np.testing.assert_allclose(method.get_buffer("centre").numpy(), found.mean, atol=1e-6)


def test_the_rotation_lowers_the_distortion_of_pq() -> None:
    train = made_up_features(300)
    rows = unit_features(train, train)
    rotated, plain = fitted(train, *SMALL), fitted(train, *SMALL)
    axes = principal_axes(rows, 16).axes
    with torch.no_grad():
        plain.get_buffer("rotation").copy_(torch.tensor(axes))
    super(OPQ, plain).fit(rows, 0)
    assert distortion(rotated, rows) < 0.97 * distortion(plain, rows)


def test_search_is_by_l2_in_the_rotated_space() -> None:
    train, queries = made_up_features(300), made_up_features(4, seed=1)
    method = fitted(train, *SMALL)
    words = method.get_buffer("codewords").double().numpy()
    asked = method.transform(torch.from_numpy(unit_features(queries, train))).double().numpy()
    codes = codes_of(method, train)
    decoded = words[np.arange(4), codes].reshape(300, -1)
    distances = ((asked[:, None] - decoded) ** 2).sum(2)
    scores = method.encode_features(queries).numpy() @ method.export().decode(codes).T
    expected = ((asked**2).sum(1)[:, None] - distances) / 2
    np.testing.assert_allclose(scores, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("bits", "wanted", "sub_dim"), [(16, 128, 48), (16, 64, 32), (40, 64, 12), (40, 3, 1)]
)
def test_as_many_axes_are_kept_as_blocks_divide(bits: int, wanted: int, sub_dim: int) -> None:
    method = shallow("opq", f"method.options.pca_dim={wanted}", bits=bits)
    assert isinstance(method, OPQ)
    assert method.sub_dim == sub_dim
    assert method.embedding_dim == bits // 8 * (sub_dim + 1)


@pytest.mark.parametrize("rows", [1, 5, 100, 257])
def test_few_images_and_few_directions_work(rows: int, capfd: pytest.CaptureFixture[str]) -> None:
    train = made_up_features(rows)
    method = fitted(train)
    decoded = method.export().decode(codes_of(method, train)).reshape(rows, 2, -1)[:, :, :-1]
    values = method.transform(torch.from_numpy(unit_features(train, train)))
    assert np.isfinite(decoded).all()
    if 1 < rows <= 256:  # every image has a codeword of its own
        np.testing.assert_allclose(decoded.reshape(rows, -1), values.numpy(), atol=1e-5)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("value", ["0", "2.5", "-8"])
def test_a_bad_number_of_axes_is_refused(value: str) -> None:
    with pytest.raises(ConfigError, match=r"method\.options\.pca_dim=.* of 'opq' must be a whole"):
        shallow("opq", f"method.options.pca_dim={value}")
