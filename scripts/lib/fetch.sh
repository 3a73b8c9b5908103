# shellcheck shell=bash disable=SC2034 # callers read the lists of packages
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Fetches packages of other Debian suites through the mirror that this machine's apt uses: sources of sid, and
# binary packages of sid and trixie, unpacked and not installed. apt verifies the signatures. The apt state is
# private, so that the machine's sources and package lists do not change and root is not needed. Sourced after
# setup.sh. A function that fails prints one line on stderr with the reason.

UPSTREAM=$ROOT/.cache/upstream
KEYRING=/usr/share/keyrings/debian-archive-keyring.gpg
FETCH_DAYS=7
# What programs need of sid to run on its rdma-core and libfabric.
STACK_PACKAGES=(libc6 libgcc-s1 libibverbs1 ibverbs-providers ibverbs-utils libibverbs-dev libfabric1 libfabric-bin)
# Other people's programs that scripts/lib/programs.sh runs, an MPI library's headers, and what Python's wheels load.
PROGRAM_PACKAGES=(perftest openmpi-bin libopenmpi-dev python3-pyverbs libhwloc15 libnuma1 libcurl4t64)
# Patterns of dependencies that no program here needs: compilers, ROCm, Perl, services. They are most of the bytes.
UNNEEDED_PACKAGES=('*-dev' '*-doc' libc-dev-bin libc-gconv-modules-extra systemd 'libsystemd*' 'gcc-*' 'g++*' 'cpp-*'
  'gfortran*' '*binutils*' 'libgprofng*' 'libisl*' 'lib?san*' 'libhwasan*' autoconf automake 'libllvm*' 'libclang*'
  'libamd*' 'libhsa*' 'librocm*' 'libz3*' 'perl*' 'libperl*' 'fonts-*' 'dpkg*' tar 'libjs-*' 'openssh*')
# Its libfabric, and mdBook, which Debian 12 has not.
TRIXIE_PACKAGES=(libfabric1 mdbook)

is_recent() { [[ -n $(find "$1" -mtime "-$FETCH_DAYS" 2>/dev/null) ]]; }

# quietly SCRATCH WHAT COMMAND…: runs a command; if it fails, prints WHAT and the message of apt, or the last line.
quietly() {
  "${@:3}" >"$1/log" 2>&1 </dev/null && return 0
  echo "$2: $(grep -m 1 '^[EW]:' "$1/log" || tail -n 1 "$1/log")" >&2
  return 1
}

# in_scratch FUNCTION ARGUMENT…: calls FUNCTION SCRATCH ARGUMENT… with a directory that is removed afterwards.
in_scratch() {
  local scratch status=0
  scratch=$(mktemp -d)
  ("$1" "$scratch" "${@:2}") || status=$?
  rm -rf -- "$scratch"
  return "$status"
}

# The URI that serves this machine's own Debian release.
debian_mirror() {
  local codename
  codename=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
  # shellcheck disable=SC2016 # apt's own placeholders
  apt-get indextargets --format '$(RELEASE) $(CODENAME) $(REPO_URI)' 'Created-By: Packages' 2>/dev/null |
    awk -v codename="$codename" '$1 == codename || $2 == codename { print $3; exit }'
}

# private_apt SCRATCH deb|deb-src SUITE: sets APT to an apt-get whose state is SCRATCH and whose only source is that
# suite of the machine's own mirror, and reads the suite's index. An expired index of a mirror that no longer updates is
# accepted: its signature is still verified.
private_apt() {
  local scratch=$1 mirror
  [[ -r $KEYRING ]] || { echo "not a Debian system, or no $KEYRING" >&2; return 1; }
  mirror=$(debian_mirror)
  [[ -n $mirror ]] || { echo "apt knows no mirror of this Debian release" >&2; return 1; }
  mkdir -p "$scratch"/{etc/sources,state/lists/partial,cache/archives/partial}
  printf '%s\n' "Types: $2" "URIs: $mirror" "Suites: $3" 'Components: main' "Signed-By: $KEYRING" \
    >"$scratch/etc/sources/$3.sources"
  APT=(apt-get -q -o "Dir::Etc::SourceList=/dev/null" -o "Dir::Etc::SourceParts=$scratch/etc/sources"
    -o "Dir::Etc::PreferencesParts=/dev/null"
    -o "Dir::State=$scratch/state" -o "Dir::State::status=/var/lib/dpkg/status" -o "Dir::Cache=$scratch/cache"
    -o "APT::Sandbox::User=$(id -un)" -o "APT::Update::Post-Invoke=" -o "APT::Update::Post-Invoke-Success="
    -o "Acquire::Check-Valid-Until=false" -o "Acquire::Languages=none" -o "Acquire::Retries=2"
    -o "Acquire::http::Timeout=60" -o "Acquire::https::Timeout=60")
  quietly "$scratch" "the index of $3 could not be read" "${APT[@]}" -o APT::Update::Error-Mode=any update
}

# ---- source packages of sid ---------------------------------------------------------

# fetch_upstream PACKAGE…: leaves $UPSTREAM/PACKAGE/{source,version}, where source holds the headers only, and for
# rdma-core $UPSTREAM/rdma-core/include as its build would make it. An older copy serves if it cannot be renewed.
fetch_upstream() {
  local package
  for package in "$@"; do
    is_recent "$UPSTREAM/$package/version" || in_scratch fetch_source "$package" ||
      [[ -e $UPSTREAM/$package/version ]] || return 1
  done
}

fetch_source() {
  local scratch=$1 package=$2 tarball new=$1/new
  private_apt "$scratch" deb-src sid || return 1
  # The upstream tarball, without Debian's patches: the comparison is with upstream's headers.
  (cd "$scratch" && quietly . "the source of $package could not be fetched" \
    "${APT[@]}" source --download-only --tar-only "$package") || return 1
  tarball=$(compgen -G "$scratch/*.orig.tar.*" | grep -v '\.asc$')
  # Python, because a minimal system has no xz for tar to call.
  quietly "$scratch" "the source of $package does not unpack" python3 -c 'import sys, tarfile
with tarfile.open(sys.argv[1]) as archive:
    headers = [m for m in archive.getmembers() if m.isreg() and m.name.endswith(".h") and ".." not in m.name.split("/")]
    archive.extractall(sys.argv[2], members=headers)' "$tarball" "$new/unpack" || return 1
  mv -- "$new"/unpack/* "$new/source" && rmdir -- "$new/unpack" || return 1
  [[ $package != rdma-core ]] || link_rdma_core_headers "$new" || return 1
  basename "$tarball" | sed 's/^[^_]*_\(.*\)\.orig\.tar\..*/\1/' >"$new/version"
  mkdir -p "$UPSTREAM"
  rm -rf -- "${UPSTREAM:?}/$package"
  mv -- "$new" "$UPSTREAM/$package"
}

# The include directory that rdma-core's build would make, as links: DIRECTORY/include/{infiniband,rdma}.
link_rdma_core_headers() {
  mkdir -p "$1/include/infiniband" "$1/include/rdma" &&
  ln -sfr "$1"/source/{kernel-headers/rdma,libibverbs}/*.h "$1/source/providers/efa/efadv.h" "$1/include/infiniband/" &&
  ln -sfr "$1"/source/kernel-headers/rdma/*.h "$1/include/rdma/"
}

# ---- root file systems --------------------------------------------------------------

# debian_root SUITE: prints the path of an archive of debootstrap's smallest root, from the mirror that apt uses. The
# archive is kept for later runs. Needs root.
debian_root() {
  local archive=$ROOT/.cache/containers/$1.tar
  [[ -s $archive ]] || in_scratch make_root "$1" "$archive" || return 1
  printf '%s\n' "$archive"
}

make_root() {
  quietly "$1" 'debootstrap failed' debootstrap --variant=minbase "$2" "$1/root" "$(debian_mirror)" || return 1
  rm -rf -- "$1"/root/var/{cache/apt,lib/apt/lists}/* "$1"/root/usr/share/{doc,man,locale}/*
  mkdir -p -- "$(dirname -- "$3")"
  tar -C "$1/root" -cf "$3.new" . && mv -- "$3.new" "$3"
}

# ---- binary packages ----------------------------------------------------------------

suite_dir() { printf '%s/.cache/%s' "$ROOT" "$1"; }

# fetch_suite SUITE PACKAGE…: leaves in suite_dir the directory root, with the packages and those that they depend on
# except UNNEEDED_PACKAGES, and the file versions. An older copy serves if it cannot be renewed. SUITE+NAME is another
# directory with packages of SUITE.
fetch_suite() {
  local dir
  dir=$(suite_dir "$1")
  if [[ -e $dir/versions && $(<"$dir/packages") == "${*:2}" ]]; then
    is_recent "$dir/versions" || in_scratch fetch_binaries "$@" || true
  else
    in_scratch fetch_binaries "$@"
  fi
}

fetch_binaries() {
  local scratch=$1 suite=$2 dir package pattern names=()
  private_apt "$scratch" deb "${suite%%+*}" || return 1
  # With nothing installed, apt names every dependency, down to the C library.
  : >"$scratch/status"
  quietly "$scratch" "packages of $suite could not be selected" "${APT[@]}" -o "Dir::State::status=$scratch/status" \
    -o Debug::NoLocking=1 install --simulate -y --no-install-recommends "${@:3}" || return 1
  while read -r package; do
    for pattern in "${UNNEEDED_PACKAGES[@]}"; do
      # shellcheck disable=SC2053 # a pattern
      [[ $package == $pattern && " ${*:3} " != *" $package "* ]] && continue 2
    done
    names+=("$package")
  done < <(sed -n 's/^Inst \([^ :]*\).*/\1/p' "$scratch/log")
  mkdir "$scratch/packages.d"
  (cd "$scratch/packages.d" && quietly "$scratch" "packages of $suite could not be fetched" \
    "${APT[@]}" download "${names[@]}") || return 1
  for package in "$scratch"/packages.d/*.deb; do
    quietly "$scratch" "${package##*/} does not unpack" dpkg-deb -x "$package" "$scratch/root" || return 1
    basename "$package" .deb >>"$scratch/versions"
  done
  printf '%s\n' "${*:3}" >"$scratch/packages"
  dir=$(suite_dir "$suite")
  rm -rf -- "$dir"
  mkdir -p "$dir"
  mv -- "$scratch/root" "$scratch/versions" "$scratch/packages" "$dir/"
}

# suite_lib SUITE, suite_loader SUITE: the directory of its libraries, and its dynamic loader.
suite_lib() { printf '%s/root/usr/lib/%s-linux-gnu' "$(suite_dir "$1")" "$(uname -m)"; }
suite_loader() { compgen -G "$(suite_lib "$1")/ld-linux-*.so.*" | head -n 1; }

# suite_version SUITE PACKAGE: its version.
suite_version() { sed -n "s/^$2_\(.*\)_[a-z0-9]*\$/\1/p" "$(suite_dir "$1")/versions" | sed 's/%3a/:/'; }
