// SPDX-License-Identifier: Apache-2.0 OR MIT
// A CUDA driver and run-time library without devices, for scripts/lib/programs.sh: NIXL's plugin for libfabric links
// both, and calls these functions of them.

enum { NO_DEVICE = 100 };

int cuCtxSetCurrent(void *context) {
  (void)context;
  return NO_DEVICE;
}

int cuDeviceGetPCIBusId(char *name, int length, int device) {
  (void)name, (void)length, (void)device;
  return NO_DEVICE;
}

int cuPointerGetAttributes(unsigned count, int *attributes, void **data, unsigned long long pointer) {
  (void)count, (void)attributes, (void)data, (void)pointer;
  return NO_DEVICE;
}

const char *cudaGetErrorString(int error) {
  (void)error;
  return "no device";
}

int cudaSetDevice(int device) {
  (void)device;
  return NO_DEVICE;
}
