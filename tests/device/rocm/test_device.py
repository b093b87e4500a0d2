"""The checks that need a device of `rocm`."""

from tests.device import checks


def test_runtime(selection):
    checks.check_runtime(selection)


def test_references(selection):
    checks.check_references(selection)


def test_tokens(selection, tmp_path):
    checks.check_tokens(selection, tmp_path, "cpu")


def test_levels(selection, tmp_path):
    checks.check_levels(selection, tmp_path)
