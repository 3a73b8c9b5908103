#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# check_interfaces.sh accepts copies of this project's headers, and names each mistake planted in a copy.
set -euo pipefail

# shellcheck source=scripts/lib/setup.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/setup.sh"

OURS=$ROOT/third_party/efa_gda
FAILED=0

# Makes an upstream tree from this project's headers, with the paths of libfabric's and rdma-core's.
make_upstream() {
  local tree=$1 header
  mkdir -p "$tree/rdma/providers"
  cp "$OURS/efa_io_defs.h" "$tree/"
  cp "$OURS/libfabric_abi.h" "$tree/rdma/fabric.h"
  sed 's|"libfabric_abi.h"|<rdma/fabric.h>|' "$OURS/fi_ext_efa.h" >"$tree/rdma/fi_ext_efa.h"
  for header in fi_domain fi_eq fi_endpoint fi_cm fi_rma fi_errno providers/fi_prov; do
    echo '#include <rdma/fabric.h>' >"$tree/rdma/$header.h"
  done
}

# expect STATUS PATTERN UPSTREAM: the check must end with STATUS and print a line that matches PATTERN.
expect() {
  local status=0 output
  output=$("$ROOT/scripts/check_interfaces.sh" "$3" 2>&1) || status=$?
  if [[ $status -ne $1 ]] || ! grep -q -- "$2" <<<"$output"; then
    printf 'expected status %s and a line like "%s"; got status %s and:\n%s\n' "$1" "$2" "$status" "$output"
    FAILED=1
  fi
}

# plant FILE SED PATTERN: the check must name a mistake that SED plants in a copy of FILE.
plant() {
  local tree
  tree=$(mktemp -d "$SCRATCH/planted XXXXXX")
  make_upstream "$tree"
  sed -i -E "$2" "$tree/$1"
  if grep -q . < <(make_upstream "$tree.clean" && diff -r "$tree" "$tree.clean"); then
    expect 1 "^DIFFERENCE: $3" "$tree"
  else
    echo "the planted mistake changed nothing: $2"
    FAILED=1
  fi
}

# A member as clang describes an _Atomic one; gcc omits the qualifier.
refuses_unknown_type() {
  PYTHONPATH=$ROOT/scripts/lib python3 -B - <<'PYTHON'
import sys
from layouts import CannotCompare, DebugInfo
try:
    DebugInfo(""" <0><b>: Abbrev Number: 1 (DW_TAG_structure_type)
    <c>   DW_AT_name        : s
    <d>   DW_AT_byte_size   : 4
 <1><10>: Abbrev Number: 2 (DW_TAG_member)
    <11>   DW_AT_name        : m
    <12>   DW_AT_type        : <0x20>
 <0><20>: Abbrev Number: 3 (DW_TAG_atomic_type)
""")
except CannotCompare as error:
    sys.exit("DW_TAG_atomic_type" not in str(error))
sys.exit(1)
PYTHON
}

main() {
  SCRATCH=$(mktemp -d)
  trap 'rm -rf -- "$SCRATCH"' EXIT
  make_upstream "$SCRATCH/same"
  expect 0 '0 differences' "$SCRATCH/same"
  expect 0 '0 differences' "$SCRATCH/same/efa_io_defs.h"
  expect 2 'cannot compare' "$SCRATCH/absent.h"
  refuses_unknown_type || { echo 'a type that the tool does not know is not refused by name'; FAILED=1; }

  plant efa_io_defs.h 's/uint16_t dest_qp_num;/uint32_t dest_qp_num;/' 'efa_io_tx_meta_desc.length: offset 6 here, 8 upstream'
  plant efa_io_defs.h 's/uint16_t ah;/uint8_t ah[2];/' 'efa_io_tx_meta_desc.ah: int16 here'
  plant efa_io_defs.h 's/uint8_t reserved\[4\];/uint8_t reserved[8];/' 'sizeof efa_io_tx_cdesc: 16 here, 20 upstream'
  plant efa_io_defs.h 's/\bimmediate_data\b/imm_data/' 'efa_io_tx_meta_desc.immediate_data: not upstream'
  plant efa_io_defs.h 's/(META_DESC_PHASE_MASK) 0x01/\1 0x02/' 'EFA_IO_TX_META_DESC_PHASE_MASK: 0x1 here, 0x2 upstream'
  plant efa_io_defs.h 's/(UNRESP_REMOTE) = 13/\1 = 17/' 'EFA_IO_COMP_STATUS_LOCAL_ERROR_UNRESP_REMOTE: 0xd here, 0x11 upstream'
  plant rdma/fi_ext_efa.h 's/uint32_t max_batch;/uint64_t max_batch;/' 'fi_efa_wq_attr.max_batch: int32 here, int64 upstream'
  plant rdma/fi_ext_efa.h 's/uint16_t \*ahn/uint16_t ahn/' 'fi_efa_ops_gda.query_addr: function'
  plant rdma/fi_ext_efa.h 's/query_cq/x/;s/get_mr_lkey/query_cq/;s/\bx\b/get_mr_lkey/' 'fi_efa_ops_gda.query_cq: offset 16 here, 32 upstream'
  plant rdma/fi_ext_efa.h 's/"efa gda ops"/"efa gda op"/' 'FI_EFA_GDA_OPS: "efa gda ops" here'
  plant rdma/fabric.h 's/FI_HMEM = 1ULL << 47/FI_HMEM = 1ULL << 46/' 'FI_HMEM: 0x800000000000 here'
  plant rdma/fabric.h 's/size_t src_addrlen;/uint32_t src_addrlen;/' 'fi_info.src_addrlen: '
  plant rdma/fabric.h 's/FI_CLASS_CQ,/FI_CLASS_X, FI_CLASS_CQ,/' 'FI_CLASS_CQ: 0xe here, 0xf upstream'
  return "$FAILED"
}

main
