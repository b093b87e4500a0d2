"""The checks that need a device of `cuda`."""

from tests.device import checks


def test_runtime(selection):
    checks.check_runtime(selection)


def test_references(selection):
    checks.check_references(selection)


def test_tokens(selection, tmp_path):
    checks.check_tokens(selection, tmp_path, "cpu")


def test_levels(selection, tmp_path):
    checks.check_levels(selection, tmp_path)


def test_H_PLT_07_importing_and_detecting_leaves_the_device_to_a_forked_child():
    import os
    import subprocess
    import sys

    code = (
        "import os, sys, torch, engine.cli; from platforms.discovery import select; select('auto')\n"
        "assert not torch.cuda.is_initialized()\n"
        "pid = os.fork()\n"
        "if pid == 0: torch.ones(3, device='cuda'); os._exit(0)\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))"
    )
    assert subprocess.run([sys.executable, "-c", code], env=dict(os.environ), check=False).returncode == 0
