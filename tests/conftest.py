"""What every test may rely on, however the suite was started."""

from __future__ import annotations

import signal

# A shell starts background jobs with SIGINT ignored, and an ignored signal is inherited.
signal.signal(signal.SIGINT, signal.default_int_handler)
