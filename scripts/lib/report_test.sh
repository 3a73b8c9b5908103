#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# test.sh counts each test once: recorded skips are not passed, ignored tests are skipped, and result lines in the output
# of a failed test do not count. A wrong command line runs nothing.
set -euo pipefail

TEST_SH=$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/../test.sh
SCRATCH=$(mktemp -d)
trap 'rm -rf -- "$SCRATCH"' EXIT

# Instead of cargo: builds nothing, and its tests have fixed results.
mkdir -p "$SCRATCH/bin" "$SCRATCH/target"
cat >"$SCRATCH/bin/cargo" <<'PROGRAM'
#!/bin/bash
echo "$*" >>"$CALLS"
case " $* " in
*' --doc '*)
  printf '   Doc-tests library\ntest result: ok. 2 passed; 0 failed; 0 ignored; 0 measured\n'
  printf 'test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured\n' ;;
*' test '*)
  printf '%s\n' $'one::puts\tno GPU' $'one::gets\tno GPU' $'one::gets\tno GPU' $'two::puts\tno adapter' >"$EFA_GDA_TEST_SKIPS"
  cat <<'OUTPUT'
     Running unittests src/lib.rs (target/one)
test slow ... ignored, takes an hour
test result: ok. 9 passed; 0 failed; 1 ignored; 0 measured
     Running tests/two.rs (target/two)
test breaks ... FAILED
---- breaks stdout ----
test child ... ignored, in the output of a child
test result: ok. 50 passed; 3 failed; 7 ignored; 0 measured
test result: FAILED. 4 passed; 1 failed; 0 ignored; 0 measured
OUTPUT
  exit 101 ;;
esac
PROGRAM
mkdir -p "$SCRATCH/cuda/bin"
printf '#!/bin/sh\n' >"$SCRATCH/cuda/bin/nvcc"
chmod +x "$SCRATCH/bin/cargo" "$SCRATCH/cuda/bin/nvcc"
export CALLS=$SCRATCH/calls PATH=$SCRATCH/bin:$PATH CARGO_TARGET_DIR=$SCRATCH/target CUDA_TOOLKIT=$SCRATCH/cuda \
  RDMA_CORE_INCLUDE=$SCRATCH/include
FAILED=0

# expect STATUS ARGUMENT…: runs test.sh, which must end with STATUS.
expect() {
  local wanted=$1 status=0
  shift
  : >"$CALLS"
  "$TEST_SH" "$@" </dev/null >"$SCRATCH/output" 2>&1 || status=$?
  [[ $status -eq $wanted ]] || problem "test.sh $*: exit status $status, not $wanted"
}

# says LINE: the output must have this line.
says() { grep -qxF -- "$1" "$SCRATCH/output" || problem "no line \"$1\""; }

problem() {
  FAILED=1
  echo "$1; the output of test.sh:"
  cat "$SCRATCH/output"
}

expect 1 -v tests
says 'SKIPPED  tests: no GPU (2 tests)'
says '             one::gets'
says 'SKIPPED  tests: no adapter (1 test)'
says 'SKIPPED  tests: takes an hour (1 test)'
says 'SKIPPED  tests of gda-probe: no adapter (1 test)'
# The build, two runs of 13 tests that passed less 3 that were skipped, and 3 examples.
[[ $(tail -n 1 "$SCRATCH/output") == '24 passed, 2 failed, 8 skipped' ]] || problem 'a wrong summary'

# One target of the probe, and one in a folder of its own.
for target in pains memory_model; do
  [[ $(grep -cE -- "--test $target( |$)" "$CALLS") -eq 1 ]] || problem "the test target $target does not run once"
done

for arguments in --nonsense -x nonsense '--all tests' 'tests nonsense'; do
  # shellcheck disable=SC2086 # words
  expect 2 $arguments
  [[ ! -s $CALLS ]] || problem "test.sh $arguments ran cargo"
done
for arguments in --help --list; do
  expect 0 "$arguments"
  [[ ! -s $CALLS ]] || problem "test.sh $arguments ran cargo"
done
exit "$FAILED"
