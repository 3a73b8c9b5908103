# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Fetches packages of other Debian suites, by name, through the mirror that this machine's apt
# already uses: sources of sid, and libfabric 2.1 of trixie. A private apt state is used: neither the machine's sources nor its package
# lists change, and root is not needed. Sourced after setup.sh.

UPSTREAM=$ROOT/.cache/upstream
UPSTREAM_KEYRING=/usr/share/keyrings/debian-archive-keyring.gpg
UPSTREAM_DAYS=7

# The URI that serves this machine's own Debian release.
debian_mirror() {
  local codename
  codename=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
  # shellcheck disable=SC2016 # apt's own placeholders
  apt-get indextargets --format '$(RELEASE) $(CODENAME) $(REPO_URI)' 'Created-By: Packages' 2>/dev/null |
    awk -v codename="$codename" '$1 == codename || $2 == codename { print $3; exit }'
}

# fetch_upstream PACKAGE…: leaves $UPSTREAM/PACKAGE/{source,version}, the headers of the source alone,
# and for rdma-core $UPSTREAM/rdma-core/include as its build would make it. Where it fails, one line on
# stderr says why.
fetch_upstream() {
  local package stale=()
  for package in "$@"; do
    [[ -n $(find "$UPSTREAM/$package/version" -mtime "-$UPSTREAM_DAYS" 2>/dev/null) ]] || stale+=("$package")
  done
  [[ ${#stale[@]} -eq 0 ]] && return 0
  local scratch status=0
  scratch=$(mktemp -d)
  # A subshell, so that whatever ends it the scratch directory goes.
  (fetch_into "$scratch" "${stale[@]}") || status=$?
  rm -rf -- "$scratch"
  [[ $status -eq 0 ]] && return 0
  # An older copy serves as well; the interfaces only grow.
  for package in "$@"; do
    [[ -e $UPSTREAM/$package/version ]] || return 1
  done
  echo "comparing with a copy of more than $UPSTREAM_DAYS days" >&2
}

fetch_into() {
  local scratch=$1
  shift
  private_apt "$scratch" deb-src sid || return 1
  local package
  for package in "$@"; do
    fetch_package "$scratch" "$package" || return 1
  done
}

# private_apt SCRATCH deb|deb-src SUITE: sets APT to an apt-get whose state is SCRATCH and whose only source is
# that suite of the machine's own mirror, its index read and its signature verified. Says on stderr why it cannot.
private_apt() {
  local scratch=$1 type=$2 suite=$3 mirror
  have apt-get || { echo "no apt-get on this system" >&2; return 1; }
  grep -q '^ID=debian$' /etc/os-release || { echo "not a Debian system" >&2; return 1; }
  [[ -r $UPSTREAM_KEYRING ]] || { echo "no $UPSTREAM_KEYRING (package debian-archive-keyring)" >&2; return 1; }
  mirror=$(debian_mirror)
  [[ -n $mirror ]] || { echo "apt knows no mirror of this Debian release" >&2; return 1; }

  mkdir -p "$scratch"/{etc/sources,state/lists/partial,cache/archives/partial,download}
  cat >"$scratch/etc/sources/$suite.sources" <<SOURCES
Types: $type
URIs: $mirror
Suites: $suite
Components: main
Signed-By: $UPSTREAM_KEYRING
SOURCES
  APT=(apt-get -q -o "Dir::Etc::SourceList=/dev/null" -o "Dir::Etc::SourceParts=$scratch/etc/sources"
    -o "Dir::State=$scratch/state" -o "Dir::State::status=/var/lib/dpkg/status" -o "Dir::Cache=$scratch/cache"
    -o "APT::Sandbox::User=$(id -un)" -o "APT::Update::Post-Invoke=" -o "APT::Update::Post-Invoke-Success="
    -o "Acquire::Languages=none" -o "Acquire::Retries=2" -o "Acquire::http::Timeout=60"
    -o "Acquire::https::Timeout=60")
  update_suite "$scratch" "$suite"
}

# Reads the suite's index. A mirror that stands still is told from one that is broken.
update_suite() {
  local log=$1/update.log
  "${APT[@]}" -o APT::Update::Error-Mode=any update >"$log" 2>&1 </dev/null && return 0
  if grep -q 'is expired' "$log"; then
    # The signature is verified all the same; only its age is not.
    APT+=(-o "Acquire::Check-Valid-Until=false")
    "${APT[@]}" -o APT::Update::Error-Mode=any update >"$log" 2>&1 </dev/null && return 0
  fi
  echo "$2's index could not be read: $(grep -m 1 '^[EW]:' "$log" || tail -n 1 "$log")" >&2
  return 1
}

# The include directory that rdma-core's build would make, as links: DIRECTORY/include/{infiniband,rdma}.
link_rdma_core_headers() {
  local file
  mkdir -p "$1/include/infiniband" "$1/include/rdma"
  for file in "$1"/source/kernel-headers/rdma/*.h "$1"/source/libibverbs/*.h "$1"/source/providers/efa/efadv.h; do
    ln -sf "../../${file#"$1/"}" "$1/include/infiniband/"
  done
  for file in "$1"/source/kernel-headers/rdma/*.h; do
    ln -sf "../../${file#"$1/"}" "$1/include/rdma/"
  done
}

fetch_package() {
  local scratch=$1 package=$2 log=$1/$2.log download=$1/download/$2 tarball new
  mkdir -p "$download"
  # The upstream tarball alone: it is upstream's headers that are compared, without Debian's patches.
  if ! (cd "$download" && "${APT[@]}" source --download-only --tar-only "$package" >"$log" 2>&1 </dev/null); then
    echo "the source of $package could not be fetched: $(grep -m 1 '^E:' "$log" || tail -n 1 "$log")" >&2
    return 1
  fi
  tarball=$(find "$download" -name '*.orig.tar.*' ! -name '*.asc' | head -n 1)
  [[ -n $tarball ]] || { echo "the source of $package has no upstream tarball" >&2; return 1; }
  new=$scratch/unpacked/$package
  mkdir -p "$new/unpack" "$UPSTREAM"
  # Python, because a minimal system has no xz for tar to call.
  python3 - "$tarball" "$new/unpack" <<'PYTHON' >"$log" 2>&1 || { echo "$(basename "$tarball") does not unpack: $(tail -n 1 "$log")" >&2; return 1; }
import sys, tarfile
with tarfile.open(sys.argv[1]) as archive:
    headers = [m for m in archive.getmembers() if m.isreg() and m.name.endswith(".h") and ".." not in m.name.split("/")]
    archive.extractall(sys.argv[2], members=headers)
PYTHON
  mv -- "$new"/unpack/* "$new/source"
  rmdir -- "$new/unpack"
  [[ $package == rdma-core ]] && link_rdma_core_headers "$new"
  basename "$tarball" | sed 's/^[^_]*_\(.*\)\.orig\.tar\..*/\1/' >"$new/version"
  rm -rf -- "${UPSTREAM:?}/$package"
  mv -- "$new" "$UPSTREAM/$package"
}

# ---- libfabric 2.1, to run ----------------------------------------------------------

TRIXIE=$ROOT/.cache/trixie

# fetch_trixie_libfabric: leaves $TRIXIE/root with trixie's libfabric1, everything that it needs, and trixie's
# own dynamic loader, unpacked and not installed. Where it fails, one line on stderr says why.
fetch_trixie_libfabric() {
  [[ -e $TRIXIE/complete ]] && return 0
  local scratch status=0
  scratch=$(mktemp -d)
  (fetch_trixie_into "$scratch") || status=$?
  rm -rf -- "$scratch"
  return "$status"
}

fetch_trixie_into() {
  local scratch=$1 log=$1/install.log package
  have dpkg-deb || { echo "no dpkg-deb on this system" >&2; return 1; }
  private_apt "$scratch" deb trixie || return 1
  # Nothing counts as installed, so that everything libfabric needs comes along, down to the C library.
  : >"$scratch/status"
  if ! "${APT[@]}" -o "Dir::State::status=$scratch/status" -o Debug::NoLocking=1 -y --download-only \
    --no-install-recommends install libfabric1 >"$log" 2>&1 </dev/null; then
    echo "trixie's libfabric1 could not be fetched: $(grep -m 1 '^E:' "$log" || tail -n 1 "$log")" >&2
    return 1
  fi
  mkdir -p "$scratch/root"
  for package in "$scratch"/cache/archives/*.deb; do
    if ! dpkg-deb --extract "$package" "$scratch/root" >"$log" 2>&1; then
      echo "$(basename "$package") does not unpack: $(tail -n 1 "$log")" >&2
      return 1
    fi
  done
  have_glob "$scratch/root/usr/lib/*/libfabric.so.1" || { echo "trixie's libfabric1 has no libfabric.so.1" >&2; return 1; }
  rm -rf -- "${TRIXIE:?}"
  mkdir -p "$TRIXIE"
  mv -- "$scratch/root" "$TRIXIE/root"
  : >"$TRIXIE/complete"
}
