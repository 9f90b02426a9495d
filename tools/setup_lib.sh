# Helpers of setup.sh: messages and steps that show their progress. Sourced, not run.

LOG=.setup.log
trap 'kill ${child-} 2>/dev/null; echo; exit 130' INT TERM

die() {
  echo "mace-stream set-up: $*" >&2
  exit 1
}

# at_least VERSION MINIMUM: compares dotted numbers; a suffix such as +cpu does not count.
at_least() {
  [[ $(printf '%s\n%s\n' "$2" "${1%%[+a-z]*}" | sort -V | head -n1) == "$2" ]]
}

# step TITLE COMMAND...: run the command into the log; on failure show the log's tail and stop.
step() {
  try_step "$@" && return
  echo "---- last lines of $LOG ----" >&2
  tail -n 25 "$LOG" >&2
  die "step '$1' failed. The whole log is in $PWD/$LOG; remedies: docs/install.md"
}

# try_step TITLE COMMAND...: as step, but return the command's status.
try_step() {
  local title=$1 begin=$SECONDS status=0
  shift
  printf '\n==== %s\n' "$title" >>"$LOG"
  "$@" >>"$LOG" 2>&1 </dev/null &
  child=$!
  show_progress "$title" "$begin"
  wait "$child" || status=$?
  child=
  [[ ! -t 1 ]] || printf '\r\033[K'
  printf '  %-44s %4d s%s\n' "$title" $((SECONDS - begin)) "$( ((status)) && echo '  failed')"
  return "$status"
}

# While the child runs: title, seconds and the log's last line, on one line of a terminal.
show_progress() {
  [[ -t 1 ]] || return 0
  local width
  width=$(($(tput cols 2>/dev/null || echo 80) - 1))
  while kill -0 "$child" 2>/dev/null; do
    printf '\r\033[K%s' "$(printf '  %-44s %4d s  %s' "$1" $((SECONDS - $2)) \
      "$(tail -n1 "$LOG" | tr -d '\r\t')" | cut -c "1-$width")"
    sleep 0.5
  done
}
