"""Where constants come from: maps are views, made-up data is the same everywhere, changed files are told."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from workbench.errors import ModelError
from workbench.ir import dtype as dt
from workbench.ir import weights
from workbench.ir.weights import MadeUp, check_unchanged, in_memory_form, map_file, map_place, place_in_file

DATA = np.arange(64, dtype=np.float32)


def mapped(path: Path, offset: int) -> np.ndarray:
    path.write_bytes(b"\0" * offset + DATA.tobytes())
    whole = map_file(path)
    assert whole is not None
    return whole[offset : offset + DATA.nbytes].view(np.float32)


def test_a_view_of_a_map_knows_its_place_in_the_file(tmp_path: Path) -> None:
    array = mapped(tmp_path / "w", 4).reshape(8, 8)[3:]
    place = place_in_file(array)
    assert place is not None
    assert (place.path, place.offset) == (tmp_path / "w", 4 + 3 * 8 * 4)
    np.testing.assert_array_equal(map_place(place, array.nbytes).view(np.float32), array.reshape(-1))


def test_what_is_not_a_contiguous_view_of_a_map_has_no_place(tmp_path: Path) -> None:
    array = mapped(tmp_path / "w", 0).reshape(8, 8)
    assert place_in_file(array.T) is None
    assert place_in_file(array.copy()) is None
    assert place_in_file(DATA[3:]) is None


def test_only_what_is_not_aligned_is_copied(tmp_path: Path) -> None:
    aligned, other = mapped(tmp_path / "a", 8), mapped(tmp_path / "b", 7)
    assert np.shares_memory(in_memory_form(aligned, dt.F32), aligned)
    np.testing.assert_array_equal(in_memory_form(other, dt.F32), DATA)
    assert in_memory_form(other, dt.F32).flags.aligned


@pytest.mark.parametrize("change", [lambda p: p.write_bytes(b"x"), lambda p: p.unlink()])
def test_a_file_that_changed_under_its_map_is_told(change, tmp_path: Path) -> None:
    array = mapped(tmp_path / "w", 0)
    place = place_in_file(array)
    assert place is not None
    check_unchanged(array)
    (tmp_path / "other").write_bytes(b"")  # a map outlives its file's name; what is told is the change
    change(tmp_path / "w")
    with pytest.raises(ModelError, match="w, which holds weights, changed since"):
        check_unchanged(array)
    with pytest.raises(ModelError, match="w, which holds weights, changed since"):
        map_place(place, array.nbytes)


def test_made_up_data_repeats_without_two_equal_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "_PERIOD", 1009)
    made = MadeUp(5, (64, 64), dt.F32).make()
    assert len(np.unique(made, axis=0)) == 64
    np.testing.assert_array_equal(made, MadeUp(5, (64, 64), dt.F32).make())
    assert not np.array_equal(made, MadeUp(6, (64, 64), dt.F32).make())
    assert MadeUp(5, (3,), dt.I64).make().tolist() == [0, 0, 0]
