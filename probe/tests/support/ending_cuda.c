/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* A libcuda of two GPUs, which ends the process that asks for an attribute of either. cuInit returns STARTS. */
#include <stdio.h>
#include <stdlib.h>

int cuInit(unsigned flags) { return flags != 0 ? 1 : STARTS; }
int cuGetErrorName(int code, const char **name) { return *name = "CUDA_ERROR_NO_DEVICE", code != 100; }
int cuGetErrorString(int code, const char **text) { return *text = "no CUDA-capable device is detected", code != 100; }
int cuDriverGetVersion(int *version) { return *version = 13000, 0; }
int cuDeviceGetCount(int *count) { return *count = 2, 0; }
int cuDeviceGet(int *device, int number) { return *device = number, 0; }
int cuDeviceGetName(char *to, int size, int device) { return snprintf(to, size, "GPU %d", device) < 0; }
int cuDeviceGetPCIBusId(char *to, int size, int device) {
    return snprintf(to, size, "0000:0%d:00.0", device + 1) < 0;
}
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    (void)value, (void)attribute, (void)device;
    abort();
}
