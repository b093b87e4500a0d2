"""``python -m ci``."""

import sys

from ci.command import main

sys.exit(main())
