"""``python -m tests.clients FOLDER``: clients in other languages and libraries against a server that plays a script.

``FOLDER`` has ``bin/python`` with litellm and ``node_modules`` with openai, as ``make clients`` makes it. What is
missing is a failure.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tests.served_process import started, wait

HERE = Path(__file__).parent
MINUTES = 5


def main(folder: Path) -> int:
    script = shutil.copy(HERE / "openai.mjs", folder)  # beside the packages, where node looks for them
    with started(text="hello ", step_s=0.002, **{"server.api_key": ["secret"]}) as process:
        wait(lambda: "curl" in process.said()[0] or process.popen.poll() is not None, 60)
        base = f"{process.url}/v1"
        commands = (["node", script, base], [str(folder / "bin/python"), str(HERE / "litellm_calls.py"), base])
        codes = [subprocess.run(command, timeout=60 * MINUTES).returncode for command in commands]
    return max(codes)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).absolute()))
