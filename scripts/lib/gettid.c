/* SPDX-License-Identifier: Apache-2.0 OR MIT
 * Rust's standard library refers to gettid, which glibc has since 2.30. A program for glibc 2.28 is linked with this
 * definition instead. */
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <unistd.h>

__attribute__((visibility("hidden"))) pid_t gettid(void) { return (pid_t)syscall(SYS_gettid); }
