#!/usr/bin/env bash
# Runs make targets one after the other and prints the seconds of each; stops at the first that fails.
set -u
report=()
for phase in "$@"; do
  begin=$SECONDS
  make --no-print-directory "$phase"
  status=$?
  report+=("$(printf '%-8s %5d s  %s' "$phase" $((SECONDS - begin)) "$([ $status -eq 0 ] && echo ok || echo "exit $status")")")
  [ $status -eq 0 ] || break
done
printf '%s\n' "" "phase    seconds" "${report[@]}"
exit $status
