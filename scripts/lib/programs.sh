# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Other people's programs over the software adapter: perftest, rdma-core's tests and Open MPI of Debian sid, NIXL and
# Mooncake of PyPI.
# docs/softefa.md lists what each shows. Sourced by realstack.sh, whose functions and variables it uses.

# shellcheck disable=SC2034 # realstack.sh reads it
NOT_RUN=

# About 145 MB of downloads. NIXL 1.5 needs a libfabric that is newer than sid's.
WHEELS=(nixl-cu12==1.4.1 mooncake-transfer-engine-efa-non-cuda==0.3.13.post1 numpy==2.3.5)

# perftest NAME BYTES PROGRAM ARGUMENT…: 200 messages of 4,096 bytes, from one process to another or in both directions,
# of which the adapter must have moved BYTES.
perftest() {
  softefa "$1" 300 "$SCRATCH/served" -p -p "$SCRATCH/sid" "${@:3}" -x 0 -n 200 -s 4096 -F
  wants "$1" "rdmap0s6: .* entries, $2 bytes"
}

perftests() {
  local once=819200 both=1638400
  perftest ib_write_bw $once ib_write_bw -c SRD
  perftest ib_write_bw-imm $once ib_write_bw -c SRD --write_with_imm
  perftest ib_write_bw-unsolicited $once ib_write_bw -c SRD --write_with_imm --unsolicited_write
  perftest ib_write_bw-queues $both ib_write_bw -c SRD -q 2
  perftest ib_read_bw $once ib_read_bw -c SRD
  perftest ib_send_bw $once ib_send_bw -c SRD
  perftest ib_send_bw-both $both ib_send_bw -c SRD -b
  # libefa refuses requests that ask for no completion, which perftest otherwise posts on UD queue pairs.
  perftest ib_send_bw-ud $once ib_send_bw -c UD -Q 1
  perftest ib_write_lat $both ib_write_lat -c SRD
  perftest ib_read_lat $once ib_read_lat -c SRD
  perftest ib_send_lat $both ib_send_lat -c SRD
  perftest ib_send_lat-ud $both ib_send_lat -c UD
}

# rdma-core's own tests, which compare the bytes that they move, except those for mlx5.
pyverbs() {
  local tests=$SCRATCH/pyverbs/tests name
  mkdir -p "$SCRATCH/pyverbs/bin"
  cp -r "$SID/root/usr/share/doc/rdma-core/tests" "$tests"
  find "$tests" -name '*.gz' -exec gunzip {} +
  rm -f "$tests"/test_mlx5_*
  # The tests ask it for the network device of a port, and it asks netlink, which knows no software adapter.
  program pyverbs/bin/rdma <<<'echo "[]"'
  PATH=$SCRATCH/pyverbs/bin:$PATH PYTHONPATH=$SCRATCH/pyverbs:$tests:$SID/root/usr/lib/python3/dist-packages \
    softefa pyverbs 300 "$SCRATCH/sid" python3 "$tests/run_tests.py" -v --gid 0
  for name in qp_ex_srd_send_imm qp_ex_srd_rdma_write_with_imm qp_ex_srd_rdma_read qp_ex_ud_send cq_events_srd \
    dv_cq_ex_with_sgid; do
    wants pyverbs "^test_$name (.*) \.\.\. ok"
  done
  sed -n 's/^Ran \([0-9]*\) tests.*/        \1 tests/p; s/^OK/        &/p' "$SCRATCH/pyverbs.log"
}

# ranks NAME RANKS ENVIRONMENT…: mpi_ranks, which compares every byte; at least half of them went through the adapter.
ranks() {
  local name=$1 number=$2 compared moved
  shift 2
  softefa "$name" 300 "$SCRATCH/launch" "$number" "$@"
  wants "$name" ": $number ranks compared [1-9]"
  compared=$(sed -n 's/.* ranks compared \([0-9]*\) bytes.*/\1/p' "$SCRATCH/$name.log")
  moved=$(sed -n 's/.*rdmap0s6: .* entries, \([0-9]*\) bytes.*/\1/p' "$SCRATCH/$name.log")
  [[ $moved -ge $((compared / 2)) ]] || failed "$name" "compared $compared bytes, of which the adapter moved $moved"
}

open_mpi() {
  cc -O1 -Wall -Wextra -I"$SID_LIB/openmpi/include" "$ROOT/softefa/uverbs/tests/mpi_ranks.c" -o "$SCRATCH/mpi_ranks" \
    -L"$SID_LIB/openmpi/lib" -Wl,--unresolved-symbols=ignore-in-shared-libs -lmpi -lopen_mpi ||
    die "mpi_ranks.c does not compile against sid's Open MPI"
  program launch <<PROGRAM
ranks=\$1
shift
# Where the unpacked files are.
export OPAL_PREFIX=$SID/root/usr OPAL_LIBDIR=$SID_LIB PRTE_PREFIX=$SID/root/usr PMIX_PREFIX=$SID/root/usr
export PMIX_MCA_pcompress_base_silence_warning=1
export FI_EFA_ENABLE_SHM_TRANSFER=0 OMPI_MCA_opal_common_ofi_provider_include=efa
# Both overwrite the start of mmap, to learn which memory a program unmaps, and so the preloaded library's.
export OMPI_MCA_memory=^patcher FI_EFA_MR_CACHE_ENABLE=0
export "\$@"
# mpirun is a wrapper of prterun.
exec $SCRATCH/sid prterun --personality ompi --allow-run-as-root --map-by :oversubscribe -n "\$ranks" \\
  $SCRATCH/sid $SCRATCH/mpi_ranks
PROGRAM
  ranks open-mpi-mtl 2 OMPI_MCA_pml=cm OMPI_MCA_mtl=ofi OMPI_MCA_osc=rdma OMPI_MCA_btl=self,ofi
  ranks open-mpi-mtl-3 3 OMPI_MCA_pml=cm OMPI_MCA_mtl=ofi OMPI_MCA_osc=rdma OMPI_MCA_btl=self,ofi
  ranks open-mpi-btl 2 OMPI_MCA_pml=ob1 OMPI_MCA_osc=rdma OMPI_MCA_btl=self,ofi
}

# transfer NAME SCRIPT ARGUMENT…: a program in Python, whose two processes compare what they write and read. That is
# twice 1,152,753 bytes (1, 80, 4,096, 100,000 and 1 MiB), and less than 4,494 bytes of the library's own messages.
transfer() {
  FI_EFA_ENABLE_SHM_TRANSFER=0 softefa "$1" 300 "$SCRATCH/sid" "$PYTHON" "$ROOT/softefa/uverbs/tests/$2" "${@:3}"
  wants "$1" '[1-9][0-9]* bytes written and [1-9][0-9]* bytes read, compared'
  wants "$1" 'rdmap0s6: .* entries, 230[0-9]\{4\} bytes'
}

wheels() {
  local messages libs folder=$SCRATCH/nixl
  if ! messages=$(venv wheels --no-deps "${WHEELS[@]}" 2>&1); then
    # shellcheck disable=SC2034 # realstack.sh reads it
    NOT_RUN="NIXL and Mooncake, because pip could not install ${WHEELS[*]}: ${messages##*$'\n'}"
    return
  fi
  PYTHON=${messages##*$'\n'}/bin/python
  libs=$(compgen -G "${PYTHON%/bin/python}/lib/python3*/site-packages/nixl_cu12.libs") ||
    die "the wheel of NIXL has no directory nixl_cu12.libs"
  mkdir -p "$folder"
  cc -shared -fPIC -Wall -Wextra "$ROOT/softefa/uverbs/tests/no_cuda.c" -o "$folder/libcuda.so.1" ||
    die "no_cuda.c does not compile"
  ln -sf libcuda.so.1 "$folder/libcudart.so.12"
  # The wheel's UCX links the wheel's libibverbs, and libefa, which the wheel lacks; sid's needs sid's libibverbs.
  ln -sf "$SID_LIB/libibverbs.so.1" "$folder/$(basename "$libs"/libibverbs-*)"
  LIBRARIES=$folder NIXL_PLUGIN_DIR=$libs/nixl transfer nixl-libfabric nixl_transfer.py LIBFABRIC
  LIBRARIES=$folder NIXL_PLUGIN_DIR=$libs/nixl UCX_MODULE_DIR=$libs/ucx UCX_TLS=srd UCX_LOG_LEVEL=info \
    transfer nixl-ucx nixl_transfer.py UCX
  wants nixl-ucx 'ucp_context_0 .* rma.*(srd/rdmap0s6:1)'
  transfer mooncake mooncake_transfer.py
}

# Runs all of them. NOT_RUN then states what could not be fetched, and why.
programs() {
  local reason
  if ! reason=$(fetch_suite sid+programs "${STACK_PACKAGES[@]}" "${PROGRAM_PACKAGES[@]}" 2>&1); then
    # shellcheck disable=SC2034 # realstack.sh reads it
    NOT_RUN="other people's programs, because $reason"
    return
  fi
  use_suite sid+programs
  echo "perftest $(suite_version sid+programs perftest), Open MPI $(suite_version sid+programs openmpi-bin), ${WHEELS[*]}"
  perftests
  pyverbs
  open_mpi
  wheels
  use_suite sid
}
