#!/usr/bin/env bash
# What only a device can show, in under 8 minutes on one H200: conformance of every kernel row, the device tests (first
# touch, capture of pieces and of whole steps, replay equal to eager, tokens at every level), and speed beside measured
# bandwidth. Ends with one table and one JSON file.
set -u
cd "$(dirname "$0")/.."
known=$(cd tests/device && printf '%s\n' */__init__.py | cut -d/ -f1 | paste -sd' ')
usage="usage: bash ci/on_device.sh [PLATFORM]

PLATFORM: one that has tests in tests/device: $known [cuda].
Variables: OUT, folder for results [on_device]; PYTHON, one whose torch sees the device [python3]; WHEELS, folder made
by ci/wheels.sh, where there is no network; ARGS, of python -m benchmarks.device; SECONDS_IN_ALL, after which steps are
ended [480]."
wrong() {
  printf '%s\n\n%s\n' "ci/on_device.sh: $1" "$usage" >&2
  exit 2
}
for word; do
  case $word in
    -h | --help) printf '%s\n' "$usage" && exit 0 ;;
    -*) wrong "unknown flag $word" ;;
  esac
done
[ $# -le 1 ] || wrong "takes one PLATFORM, found $*"
platform=${1-cuda}
grep -qxF -e "$platform" <<<"${known// /$'\n'}" || wrong "no tests for platform ${platform@Q}"
[[ ${SECONDS_IN_ALL:-480} =~ ^[1-9][0-9]*$ ]] || wrong "SECONDS_IN_ALL=$SECONDS_IN_ALL is no number of seconds"
command -v "${PYTHON:-python3}" >/dev/null || wrong "PYTHON=${PYTHON:-} is no program"
[ -z "${WHEELS:-}" ] || ls "$WHEELS"/*.whl >/dev/null 2>&1 || wrong "WHEELS=$WHEELS holds no wheels"
out=${OUT:-on_device}
mkdir -p "$out"
out=$(cd "$out" && pwd)
python=$out/venv/bin/python
export ENGINE_CACHE_ROOT=$out/cache
rm -f "$out"/{venv,torch,packages,engine,conform,tests,bench}.log "$out"/{bench,on_device}.json
most=${SECONDS_IN_ALL:-480}
failed=0
rows=()

step() {  # name, most seconds, command
  local name=$1 limit=$2 begin=$SECONDS status state
  shift 2
  [ "$limit" -le $((most - begin)) ] || limit=$((most > begin ? most - begin : 1))
  timeout -k 10 "$limit" "$@" >"$out/$name.log" 2>&1
  status=$?
  state=$([ $status -eq 0 ] && echo ok || { [ $status -eq 124 ] && echo "over $limit s" || echo "exit $status"; })
  rows+=("$(printf '%-10s %5d s  %s' "$name" $((SECONDS - begin)) "$state")")
  [ $status -eq 0 ] && return 0
  failed=1
  echo "$name: $state; the end of $out/$name.log:"
  tail -n 20 "$out/$name.log"
  return 1
}

from=${WHEELS:+--no-index --no-deps}
# --no-build-isolation builds with what the environment has, and a new one may have a setuptools older than asked for.
build=$("${PYTHON:-python3}" -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"])')
more=$([ -n "${WHEELS:-}" ] && ls "$WHEELS"/*.whl || echo "$build" wheel pytest pytest-timeout hypothesis)
step venv 60 "${PYTHON:-python3}" -m venv --system-site-packages "$out/venv" &&
  step torch 60 "$python" - "$("${PYTHON:-python3}" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" <<'PY' &&
import pathlib, sys, sysconfig

# Where PYTHON is itself a virtual environment, its packages are not the system's.
pathlib.Path(sysconfig.get_path("purelib"), "given.pth").write_text(sys.argv[1] + "\n")
PY
  step packages 120 "$python" -m pip install -q --disable-pip-version-check $from $more &&
  step engine 60 "$python" -m pip install -q --disable-pip-version-check --no-build-isolation $from -e . &&
  {
    step conform 180 "$python" -m engine conform "$platform" --require-device --json
    step tests 180 "$python" -m pytest -q -x --tb=short "tests/device/$platform"
    step bench 240 "$python" -m benchmarks.device --platform "$platform" --json "$out/bench.json" ${ARGS:-}
    cat "$out/bench.log"
  }

printf '%s\n' "" "step       seconds" "${rows[@]}"
"${PYTHON:-python3}" - "$out" "$failed" "${rows[@]}" <<'PY'
import json, pathlib, sys

out, failed, *rows = sys.argv[1:]
report = {"failed": failed != "0", "steps": [row.split(maxsplit=3) for row in rows]}
for name, file in (("conform", "conform.log"), ("bench", "bench.json")):
    try:
        report[name] = json.loads(pathlib.Path(out, file).read_text())
    except (OSError, ValueError) as error:
        report[name] = {"unread": str(error)}
pathlib.Path(out, "on_device.json").write_text(json.dumps(report, indent=1) + "\n")
print(f"everything is in {out}/on_device.json")
PY
exit $failed
