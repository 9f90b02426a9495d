# What a machine must have before anything long starts. Sourced by setup.sh, not run.

NEEDED_DISK_GB=3

ASKED_PYTHON=${PYTHON-}

# Set PYTHON to the interpreter to use, or to nothing if there is none of at least 3.10.
find_python() {
  local name names=(python3 python3.13 python3.12 python3.11 python3.10)
  if [[ -n $ASKED_PYTHON ]]; then names=("$ASKED_PYTHON"); fi
  for name in "${names[@]}"; do
    PYTHON=
    new_enough "$name" || continue
    PYTHON=$("$name" -c 'import sys; print(sys.executable)')
    return
  done
}

new_enough() {
  "$1" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null
}

# Report everything that is missing at once, with the line that installs it, and stop.
preflight() {
  missing=() apt=() dnf=()
  check_python
  check_compiler
  check_disk
  if ((${#missing[@]} == 0)); then return; fi
  echo "mace-stream cannot be set up yet. Missing:" >&2
  printf '  - %s\n' "${missing[@]}" >&2
  show_remedy >&2
  exit 1
}

# lacks WHAT APT_PACKAGE DNF_PACKAGE
lacks() {
  missing+=("$1")
  apt+=($2)
  dnf+=($3)
}

check_python() {
  if [[ -z $PYTHON ]]; then
    lacks "Python 3.10 or newer${ASKED_PYTHON:+ ($ASKED_PYTHON is older or does not start)}" \
      "python3 python3-venv python3-dev" "python3.12 python3.12-devel"
    return
  fi
  "$PYTHON" -c 'import venv, ensurepip' 2>/dev/null ||
    lacks "Python's venv module with ensurepip ($PYTHON)" python3-venv python3-pip
  "$PYTHON" - 2>/dev/null <<'PY' || lacks "Python's C headers, Python.h ($PYTHON)" python3-dev python3-devel
import os
import sysconfig

raise SystemExit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))
PY
  "$PYTHON" - 2>/dev/null <<'PY' || lacks "Python's shared library, libpython3.x.so ($PYTHON)" python3-dev python3-libs
import ctypes
import sysconfig

name = sysconfig.get_config_var("INSTSONAME") or ""
if ".so" not in name:
    name = "libpython{}.so.1.0".format(sysconfig.get_config_var("LDVERSION"))
try:
    ctypes.CDLL(name)
except OSError:
    ctypes.CDLL("{}/{}".format(sysconfig.get_config_var("LIBDIR"), name))
PY
}

check_compiler() {
  local name
  for name in ${CXX:+"$CXX"} c++ g++ clang++; do
    if compiles_cxx17 "$name"; then return; fi
    if [[ $name == "${CXX-}" ]]; then break; fi
  done
  lacks "a C++17 compiler${CXX:+ (CXX=$CXX does not compile C++17)}" g++ gcc-c++
}

compiles_cxx17() {
  command -v "$1" >/dev/null && echo '#include <string_view>
int main() { if constexpr (true) return std::string_view("").size(); }' |
    "$1" -std=c++17 -fsyntax-only -x c++ - 2>/dev/null
}

check_disk() {
  local free_gb
  free_gb=$(df -Pk . | awk 'NR == 2 { print int($4 / 1048576) }')
  if [[ -d .venv ]] || ((free_gb >= NEEDED_DISK_GB)); then return; fi
  missing+=("$NEEDED_DISK_GB GB of free disk in $PWD (found $free_gb GB); free some, or clone elsewhere")
}

show_remedy() {
  if ((${#apt[@]} == 0)); then return; fi
  echo "Install it and start again:"
  if command -v dnf >/dev/null; then
    echo "    sudo dnf install ${dnf[*]}"
  elif command -v apt-get >/dev/null; then
    echo "    sudo apt-get install ${apt[*]}"
  else
    echo "    Debian, Ubuntu:  sudo apt-get install ${apt[*]}"
    echo "    Fedora, RHEL:    sudo dnf install ${dnf[*]}"
  fi
}
