/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * NCCL's put, once, for scripts/footprint.sh. Its code comes from the headers of the PyPI package nvidia-nccl-cu13 and is
 * not part of this project.
 */
#include <nccl_device.h>
#include <nccl_device/gin/efa_gda/gin_efa_gda.h>

extern "C" __global__ void __launch_bounds__(1024)
    nccl_put(nccl_ofi_gin_gdaki_dev_endpoint_handle *endpoint, unsigned long long local, unsigned long long remote) {
  nccl::gin::efa_gda::postRdmaOp<NCCL_GIN_RESOURCE_SHARING_GPU>(
      endpoint, 3, 9, 0x1234, remote, 0xabc, nccl::gin::efa_gda::RdmaSgeEncoder{local, 5, 64});
}
