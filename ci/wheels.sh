#!/usr/bin/env bash
# Collects what the project and its device tests need beside torch, triton and numpy, for a machine without a network:
#   bash ci/wheels.sh FOLDER [PYTHON_VERSION]     (of that machine, as in 3.12)
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:?bash ci/wheels.sh FOLDER [PYTHON_VERSION]}
version=${2:-$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')}
wanted=$(python3 - <<'PY'
import re, tomllib
whole = tomllib.load(open("pyproject.toml", "rb"))
project = whole["project"]
names = [re.match(r"[\w-]+", line)[0] for line in project["dependencies"]] + ["pytest", "pytest-timeout", "hypothesis"]
print(*(name for name in names if name not in ("torch", "numpy")), *whole["build-system"]["requires"], "wheel")
PY
)
mkdir -p "$folder"
python3 -m pip download -q --disable-pip-version-check -c constraints.txt --only-binary=:all: \
  --python-version "$version" -d "$folder" $wanted
rm -f "$folder"/numpy-*.whl
du -sh "$folder"
