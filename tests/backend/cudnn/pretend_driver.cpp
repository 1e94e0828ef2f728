// A driver of no GPU, for a library that compiles kernels and hands them to the driver: it takes
// modules and gives out functions, and runs nothing. Whatever would need a device fails, so the
// process still has none. Signatures and results as in cuda.h.

namespace {
int something;
constexpr int kNoDevice = 100;  // CUDA_ERROR_NO_DEVICE
}  // namespace

extern "C" {

int cuLibraryLoadData(void** library, const void*, void*, void*, unsigned, void*, void*, unsigned) {
  *library = &something;
  return 0;
}
int cuLibraryGetKernel(void** kernel, void*, const char*) {
  *kernel = &something;
  return 0;
}
int cuKernelGetFunction(void** function, void*) {
  *function = &something;
  return 0;
}
int cuLibraryUnload(void*) { return 0; }
int cuKernelSetAttribute(int, int, void*, int) { return 0; }
int cuKernelGetAttribute(int* value, int, void*, int) {
  *value = 0;
  return 0;
}
int cuFuncSetAttribute(void*, int, int) { return 0; }
int cuFuncGetAttribute(int* value, int, void*) {
  *value = 0;
  return 0;
}
int cuDriverGetVersion(int* version) {
  *version = 13000;
  return 0;
}
int cuGetErrorName(int, const char** name) {
  *name = "none";
  return 0;
}
int cuGetErrorString(int, const char** text) {
  *text = "there is no device";
  return 0;
}

#define BALLAST_NO_DEVICE(name) \
  int name() { return kNoDevice; }
BALLAST_NO_DEVICE(cuInit)
BALLAST_NO_DEVICE(cuCtxGetCurrent)
BALLAST_NO_DEVICE(cuCtxGetDevice)
BALLAST_NO_DEVICE(cuCtxGetLimit)
BALLAST_NO_DEVICE(cuCtxPopCurrent)
BALLAST_NO_DEVICE(cuCtxPushCurrent)
BALLAST_NO_DEVICE(cuDeviceGet)
BALLAST_NO_DEVICE(cuDeviceGetAttribute)
BALLAST_NO_DEVICE(cuDeviceGetCount)
BALLAST_NO_DEVICE(cuDevicePrimaryCtxRelease)
BALLAST_NO_DEVICE(cuDevicePrimaryCtxReset)
BALLAST_NO_DEVICE(cuDevicePrimaryCtxRetain)
BALLAST_NO_DEVICE(cuLaunchCooperativeKernel)
BALLAST_NO_DEVICE(cuLaunchKernel)
BALLAST_NO_DEVICE(cuLaunchKernelEx)
BALLAST_NO_DEVICE(cuLibraryLoadFromFile)
BALLAST_NO_DEVICE(cuLinkAddData)
BALLAST_NO_DEVICE(cuLinkAddData_v2)
BALLAST_NO_DEVICE(cuLinkAddFile_v2)
BALLAST_NO_DEVICE(cuLinkComplete)
BALLAST_NO_DEVICE(cuLinkCreate)
BALLAST_NO_DEVICE(cuLinkCreate_v2)
BALLAST_NO_DEVICE(cuLinkDestroy)
BALLAST_NO_DEVICE(cuMemcpyDtoH_v2)
BALLAST_NO_DEVICE(cuModuleGetFunction)
BALLAST_NO_DEVICE(cuModuleGetGlobal_v2)
BALLAST_NO_DEVICE(cuModuleLoadData)
BALLAST_NO_DEVICE(cuModuleLoadDataEx)
BALLAST_NO_DEVICE(cuModuleLoadFatBinary)
BALLAST_NO_DEVICE(cuModuleUnload)
BALLAST_NO_DEVICE(cuOccupancyMaxActiveBlocksPerMultiprocessor)
BALLAST_NO_DEVICE(cuOccupancyMaxPotentialClusterSize)
BALLAST_NO_DEVICE(cuStreamGetCtx)
BALLAST_NO_DEVICE(cuStreamSynchronize)
BALLAST_NO_DEVICE(cuTensorMapEncodeTiled)

}  // extern "C"
