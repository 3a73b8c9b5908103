#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Links libefa_gda.so with the symbol versions of efa_gda.map from the static library that cargo built. (cargo passes a
# list of exports of its own to the linker, which accepts no other beside it.)
#
#   link.sh ARCHIVE OUTPUT
#
# CC names the C compiler that links (default: cc).
set -eu

map=$(dirname -- "$0")/efa_gda.map
# -u takes the function's object from the archive.
wanted=$(sed -n 's/^    \([a-z_]*\);$/-Wl,-u,\1/p' "$map")
# The libraries are those that rustc names for a static library (--print native-static-libs).
# shellcheck disable=SC2086 # options, one a word
exec "${CC:-cc}" -shared -o "$2" -Wl,-soname,libefa_gda.so -Wl,--version-script="$map" -Wl,--gc-sections -Wl,-z,defs \
  -Wl,-z,relro,-z,now $wanted "$1" -lgcc_s -lutil -lrt -lpthread -lm -ldl -lc
