# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Fetches packages of other Debian suites through the mirror that this machine's apt uses: sources of sid, and
# binary packages of sid and trixie, unpacked and not installed. apt verifies the signatures. The apt state is
# private, so that the machine's sources and package lists do not change and root is not needed. Sourced after
# setup.sh.

UPSTREAM=$ROOT/.cache/upstream
UPSTREAM_KEYRING=/usr/share/keyrings/debian-archive-keyring.gpg
FETCH_DAYS=7
# What programs need of sid to run on its rdma-core and libfabric.
# shellcheck disable=SC2034 # callers read it
STACK_PACKAGES=(libc6 libgcc-s1 libibverbs1 ibverbs-providers ibverbs-utils libibverbs-dev libfabric1 libfabric-bin)
# Its libfabric, and mdBook, which Debian 12 has not.
# shellcheck disable=SC2034
TRIXIE_PACKAGES=(libfabric1 mdbook)

is_recent() { [[ -n $(find "$1" -mtime "-$FETCH_DAYS" 2>/dev/null) ]]; }

# first_error LOG: apt's own message, or the last line.
first_error() { grep -m 1 '^[EW]:' "$1" || tail -n 1 "$1"; }

# The URI that serves this machine's own Debian release.
debian_mirror() {
  local codename
  codename=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
  # shellcheck disable=SC2016 # apt's own placeholders
  apt-get indextargets --format '$(RELEASE) $(CODENAME) $(REPO_URI)' 'Created-By: Packages' 2>/dev/null |
    awk -v codename="$codename" '$1 == codename || $2 == codename { print $3; exit }'
}

# private_apt SCRATCH deb|deb-src SUITE: sets APT to an apt-get whose state is SCRATCH and whose only source is that
# suite of the machine's own mirror, and reads the suite's index. On failure one line on stderr gives the reason.
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
    -o "Dir::Etc::PreferencesParts=/dev/null"
    -o "Dir::State=$scratch/state" -o "Dir::State::status=/var/lib/dpkg/status" -o "Dir::Cache=$scratch/cache"
    -o "APT::Sandbox::User=$(id -un)" -o "APT::Update::Post-Invoke=" -o "APT::Update::Post-Invoke-Success="
    -o "Acquire::Languages=none" -o "Acquire::Retries=2" -o "Acquire::http::Timeout=60"
    -o "Acquire::https::Timeout=60")
  update_suite "$scratch" "$suite"
}

# Reads the suite's index. An expired index of a mirror that no longer updates is accepted: its signature is still
# verified.
update_suite() {
  local log=$1/update.log
  "${APT[@]}" -o APT::Update::Error-Mode=any update >"$log" 2>&1 </dev/null && return 0
  if grep -q 'is expired' "$log"; then
    APT+=(-o "Acquire::Check-Valid-Until=false")
    "${APT[@]}" -o APT::Update::Error-Mode=any update >"$log" 2>&1 </dev/null && return 0
  fi
  echo "the index of $2 could not be read: $(first_error "$log")" >&2
  return 1
}

# in_scratch FUNCTION ARGUMENT…: calls FUNCTION SCRATCH ARGUMENT… with a directory that is removed afterwards, in a
# subshell, so that a failure anywhere in the function still removes it.
in_scratch() {
  local scratch status=0 function=$1
  shift
  scratch=$(mktemp -d)
  ("$function" "$scratch" "$@") || status=$?
  rm -rf -- "$scratch"
  return "$status"
}

# ---- source packages of sid ---------------------------------------------------------

# fetch_upstream PACKAGE…: leaves $UPSTREAM/PACKAGE/{source,version}, where source holds the headers only, and for
# rdma-core $UPSTREAM/rdma-core/include as its build would make it. On failure one line on stderr gives the reason.
fetch_upstream() {
  local package stale=()
  for package in "$@"; do
    is_recent "$UPSTREAM/$package/version" || stale+=("$package")
  done
  [[ ${#stale[@]} -eq 0 ]] && return 0
  in_scratch fetch_sources "${stale[@]}" && return 0
  # An older copy serves as well: upstream only extends these interfaces.
  for package in "$@"; do
    [[ -e $UPSTREAM/$package/version ]] || return 1
  done
  echo "using a copy of more than $FETCH_DAYS days" >&2
}

fetch_sources() {
  local scratch=$1 package
  shift
  private_apt "$scratch" deb-src sid || return 1
  for package in "$@"; do
    fetch_source "$scratch" "$package" || return 1
  done
}

fetch_source() {
  local scratch=$1 package=$2 log=$1/$2.log download=$1/download/$2 tarball new
  mkdir -p "$download"
  # The upstream tarball, without Debian's patches: the comparison is with upstream's headers.
  if ! (cd "$download" && "${APT[@]}" source --download-only --tar-only "$package" >"$log" 2>&1 </dev/null); then
    echo "the source of $package could not be fetched: $(first_error "$log")" >&2
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
  [[ $package != rdma-core ]] || link_rdma_core_headers "$new"
  basename "$tarball" | sed 's/^[^_]*_\(.*\)\.orig\.tar\..*/\1/' >"$new/version"
  rm -rf -- "${UPSTREAM:?}/$package"
  mv -- "$new" "$UPSTREAM/$package"
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

# ---- root file systems --------------------------------------------------------------

# debian_root SUITE: prints the path of an archive of debootstrap's smallest root, from the mirror that apt uses. The
# archive is kept for later runs. Needs root. On failure one line on stderr gives the reason.
debian_root() {
  local archive=$ROOT/.cache/containers/$1.tar
  [[ -s $archive ]] || in_scratch make_root "$1" "$archive" || return 1
  printf '%s\n' "$archive"
}

make_root() {
  local tree=$1/root suite=$2 archive=$3
  debootstrap --variant=minbase "$suite" "$tree" "$(debian_mirror)" >"$1/log" 2>&1 ||
    { echo "debootstrap failed: $(tail -n 1 "$1/log")" >&2; return 1; }
  rm -rf -- "$tree"/var/cache/apt/* "$tree"/var/lib/apt/lists/* "$tree"/usr/share/{doc,man,locale}/*
  mkdir -p -- "$(dirname -- "$archive")"
  tar -C "$tree" -cf "$archive.new" . && mv -- "$archive.new" "$archive"
}

# ---- binary packages ----------------------------------------------------------------

suite_dir() { printf '%s/.cache/%s' "$ROOT" "$1"; }

# fetch_suite SUITE PACKAGE…: leaves in suite_dir the directory root, with the packages and all packages that they
# depend on, and the file versions. On failure one line on stderr gives the reason; an older copy then serves.
fetch_suite() {
  local suite=$1 dir
  shift
  dir=$(suite_dir "$suite")
  if [[ -e $dir/versions && $(<"$dir/packages") == "$*" ]]; then
    is_recent "$dir/versions" && return 0
    in_scratch fetch_binaries "$suite" "$@" || say "using a copy of $suite of more than $FETCH_DAYS days"
    return 0
  fi
  in_scratch fetch_binaries "$suite" "$@"
}

fetch_binaries() {
  local scratch=$1 suite=$2 dir package log=$1/install.log
  shift 2
  dir=$(suite_dir "$suite")
  have dpkg-deb || { echo "no dpkg-deb on this system" >&2; return 1; }
  private_apt "$scratch" deb "$suite" || return 1
  # With nothing installed, apt fetches every dependency, down to the C library.
  : >"$scratch/status"
  mkdir -p "$scratch/root"
  if ! "${APT[@]}" -o "Dir::State::status=$scratch/status" -o Debug::NoLocking=1 install --download-only -y \
    --no-install-recommends "$@" >"$log" 2>&1 </dev/null; then
    echo "packages of $suite could not be fetched: $(first_error "$log")" >&2
    return 1
  fi
  for package in "$scratch"/cache/archives/*.deb; do
    # Large, and no program here needs them.
    case ${package##*/} in systemd_* | libc-gconv-modules-extra_* | *-doc_*) continue ;; esac
    dpkg-deb -x "$package" "$scratch/root" || { echo "${package##*/} does not unpack" >&2; return 1; }
    basename "$package" .deb >>"$scratch/versions"
  done
  printf '%s\n' "$*" >"$scratch/packages"
  rm -rf -- "$dir"
  mkdir -p "$dir"
  mv -- "$scratch/root" "$scratch/versions" "$scratch/packages" "$dir/"
}

# suite_lib SUITE, suite_loader SUITE: the directory of its libraries, and its dynamic loader.
suite_lib() { printf '%s/root/usr/lib/%s-linux-gnu' "$(suite_dir "$1")" "$(uname -m)"; }
suite_loader() {
  { compgen -G "$(suite_lib "$1")/ld-linux-*.so.*" || compgen -G "$(suite_dir "$1")/root/usr/lib*/ld-linux-*.so.*"; } |
    head -n 1
}

# suite_version SUITE PACKAGE: its version.
suite_version() { sed -n "s/^$2_\(.*\)_[a-z0-9]*\$/\1/p" "$(suite_dir "$1")/versions" | sed 's/%3a/:/'; }
