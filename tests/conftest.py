"""What every test may rely on, however the suite was started."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import tempfile

# A shell starts background jobs with SIGINT ignored, and an ignored signal is inherited.
signal.signal(signal.SIGINT, signal.default_int_handler)

# What earlier runs found out on this machine is no reason to look less closely in this one.
if "ENGINE_CACHE_ROOT" not in os.environ:
    os.environ["ENGINE_CACHE_ROOT"] = tempfile.mkdtemp(prefix="engine-tests-")
    atexit.register(shutil.rmtree, os.environ["ENGINE_CACHE_ROOT"], ignore_errors=True)
